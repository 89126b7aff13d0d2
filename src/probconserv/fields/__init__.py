"""What a prediction is: `Diagonal`, `LowRank`, `Dense`, `Mixture`, `State`; and its covariance."""
