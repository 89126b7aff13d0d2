"""What every room uses: errors, checks of arguments, trees of tensors, complete files."""
