"""Speech in: voice activity, streaming recognition, and the recognisers."""
