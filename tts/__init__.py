"""Speech out: cutting text into clauses, making it speakable, and the voices."""
