"""Proposals: a reviewer proposes other arguments, and the agent or its owner accepts or declines them."""
