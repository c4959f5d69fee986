"""The workbench: take attention heads apart."""
