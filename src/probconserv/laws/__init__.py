"""What is known: `Law`, the maps it is made of, and the functions that build laws."""
