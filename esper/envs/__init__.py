"""Growing networks as a reinforcement-learning environment: instances, observations, rewards."""
