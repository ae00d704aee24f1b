"""Event simulation of serving pools under the scheduler rules of the engines; no closed form inside."""
