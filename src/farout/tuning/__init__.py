"""The parts of tuning: its terms, its search, one trial, the study, the workers."""
