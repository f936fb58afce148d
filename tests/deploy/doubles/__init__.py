"""Doubles of AWS for the real boto3: one HTTP server that speaks each service's own protocol.

control   SageMaker's control plane: endpoints, components, plans, jobs, on a clock of ours
jobs      AI workloads, benchmark jobs with their archives, recommendations
runtime   invocations and their event stream; answers itself or forwards to a real server
s3        objects and multipart uploads, checksums verified
beside    quotas, prices, autoscaling, alarms, logs, secrets
signed    whether a signature is the right one
fleet     containers: a real or simulated engine for each model that is in service
server    the socket, and which service a request is for
"""

from doubles.control import ControlPlane, Refusal
from doubles.s3 import ObjectStore
from doubles.server import FakeAws

__all__ = ["ControlPlane", "FakeAws", "ObjectStore", "Refusal"]
