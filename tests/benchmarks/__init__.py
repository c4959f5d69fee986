"""What the workbench costs beside plain torch, and whether the main job stays inside its limits."""
