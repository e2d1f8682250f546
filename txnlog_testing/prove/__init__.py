"""Proof of a job: is its output exact after kills, replays, lost files and a broken broker?"""
