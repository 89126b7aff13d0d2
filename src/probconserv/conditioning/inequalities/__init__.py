"""Values within bounds, and values that rise or fall, beside linear laws."""
