"""The experiments of the paper, and neural operators beyond their range."""
