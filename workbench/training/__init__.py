"""Training that is bitwise reproducible and survives being killed."""
