"""A server under mixed traffic for a long time, whose clients leave as they like: what grows, what stays behind?"""
