"""Whether laws and predictions agree, how wrong a law may be, and how good a prediction is."""
