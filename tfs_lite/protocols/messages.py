"""The message classes by name. protobuf makes them at run time, so type checkers see ``Any``.

Nested messages and enums are attributes as usual: ``ModelVersionStatus.State.Value("END")``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tfs_lite.protocols.descriptors import message_class

Message: TypeAlias = Any
"""An instance of one of the classes below, for readers only: type checkers check nothing."""

# Tensors, examples, signatures
TensorProto = message_class("tensorflow.TensorProto")
TensorShapeProto = message_class("tensorflow.TensorShapeProto")
Example = message_class("tensorflow.Example")
TensorInfo = message_class("tensorflow.TensorInfo")
SignatureDef = message_class("tensorflow.SignatureDef")

# PredictionService
ModelSpec = message_class("tensorflow.serving.ModelSpec")
PredictRequest = message_class("tensorflow.serving.PredictRequest")
PredictResponse = message_class("tensorflow.serving.PredictResponse")
Input = message_class("tensorflow.serving.Input")
ClassificationResult = message_class("tensorflow.serving.ClassificationResult")
RegressionResult = message_class("tensorflow.serving.RegressionResult")
ClassificationRequest = message_class("tensorflow.serving.ClassificationRequest")
ClassificationResponse = message_class("tensorflow.serving.ClassificationResponse")
RegressionRequest = message_class("tensorflow.serving.RegressionRequest")
RegressionResponse = message_class("tensorflow.serving.RegressionResponse")
MultiInferenceRequest = message_class("tensorflow.serving.MultiInferenceRequest")
MultiInferenceResponse = message_class("tensorflow.serving.MultiInferenceResponse")
SignatureDefMap = message_class("tensorflow.serving.SignatureDefMap")
GetModelMetadataRequest = message_class("tensorflow.serving.GetModelMetadataRequest")
GetModelMetadataResponse = message_class("tensorflow.serving.GetModelMetadataResponse")

# Logged requests
PredictionLog = message_class("tensorflow.serving.PredictionLog")

# ModelService
StatusProto = message_class("tensorflow.serving.StatusProto")
GetModelStatusRequest = message_class("tensorflow.serving.GetModelStatusRequest")
GetModelStatusResponse = message_class("tensorflow.serving.GetModelStatusResponse")
ModelVersionStatus = message_class("tensorflow.serving.ModelVersionStatus")
ReloadConfigRequest = message_class("tensorflow.serving.ReloadConfigRequest")
ReloadConfigResponse = message_class("tensorflow.serving.ReloadConfigResponse")

# Files of the server
ModelServerConfig = message_class("tensorflow.serving.ModelServerConfig")
LoggingConfig = message_class("tensorflow.serving.LoggingConfig")
BatchingParameters = message_class("tensorflow.serving.BatchingParameters")
MonitoringConfig = message_class("tensorflow.serving.MonitoringConfig")
SSLConfig = message_class("tensorflow.serving.SSLConfig")
TritonModelConfig = message_class("inference.ModelConfig")

# grpc.health.v1
HealthCheckRequest = message_class("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = message_class("grpc.health.v1.HealthCheckResponse")

# tfs_lite.AdminService
AdminRequest = message_class("tfs_lite.AdminRequest")
AdminResponse = message_class("tfs_lite.AdminResponse")
