"""A plan beside the event simulation of its pools."""
