"""One file a command of ``workbench``."""
