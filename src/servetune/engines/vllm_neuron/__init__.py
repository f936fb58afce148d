"""vLLM on AWS Neuron devices."""
