"""Replicas: models in processes on other machines, which something else starts; one lifecycle over all of them.

engine      the contract with what starts, ends and lists those processes, and the place as a near end sees it
placement   which replica goes to which node, and which ones are ended: pure decisions, with reasons in words
states      what a version wants, the states of a replica, and the values of its status
reconciler  looks, decides and acts, round by round, so that each version has the replicas that it wants
"""
