"""Certify that every strategy computes the same as eager training."""
