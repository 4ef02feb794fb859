"""The message classes of ``inference.GRPCInferenceService``, by name, made at run time like those in ``messages``."""

from __future__ import annotations

from tfs_lite.protocols.descriptors import message_class

# Inference
ModelInferRequest = message_class("inference.ModelInferRequest")
ModelInferResponse = message_class("inference.ModelInferResponse")
ModelStreamInferResponse = message_class("inference.ModelStreamInferResponse")
InferTensorContents = message_class("inference.InferTensorContents")

# Health and metadata
ServerLiveRequest = message_class("inference.ServerLiveRequest")
ServerLiveResponse = message_class("inference.ServerLiveResponse")
ServerReadyRequest = message_class("inference.ServerReadyRequest")
ServerReadyResponse = message_class("inference.ServerReadyResponse")
ModelReadyRequest = message_class("inference.ModelReadyRequest")
ModelReadyResponse = message_class("inference.ModelReadyResponse")
ServerMetadataRequest = message_class("inference.ServerMetadataRequest")
ServerMetadataResponse = message_class("inference.ServerMetadataResponse")
ModelMetadataRequest = message_class("inference.ModelMetadataRequest")
ModelMetadataResponse = message_class("inference.ModelMetadataResponse")
TensorMetadata = ModelMetadataResponse.TensorMetadata

# Configuration and statistics
ModelConfig = message_class("inference.ModelConfig")
ModelConfigRequest = message_class("inference.ModelConfigRequest")
ModelConfigResponse = message_class("inference.ModelConfigResponse")
ModelStatisticsRequest = message_class("inference.ModelStatisticsRequest")
ModelStatisticsResponse = message_class("inference.ModelStatisticsResponse")
ModelStatistics = message_class("inference.ModelStatistics")
StatisticDuration = message_class("inference.StatisticDuration")
InferStatistics = message_class("inference.InferStatistics")
InferResponseStatistics = message_class("inference.InferResponseStatistics")

# The model repository
RepositoryIndexRequest = message_class("inference.RepositoryIndexRequest")
RepositoryIndexResponse = message_class("inference.RepositoryIndexResponse")
ModelIndex = RepositoryIndexResponse.ModelIndex
RepositoryModelLoadRequest = message_class("inference.RepositoryModelLoadRequest")
RepositoryModelLoadResponse = message_class("inference.RepositoryModelLoadResponse")
RepositoryModelUnloadRequest = message_class("inference.RepositoryModelUnloadRequest")
RepositoryModelUnloadResponse = message_class("inference.RepositoryModelUnloadResponse")

# Shared memory
SystemSharedMemoryStatusRequest = message_class("inference.SystemSharedMemoryStatusRequest")
SystemSharedMemoryStatusResponse = message_class("inference.SystemSharedMemoryStatusResponse")
SystemSharedMemoryRegisterRequest = message_class("inference.SystemSharedMemoryRegisterRequest")
SystemSharedMemoryRegisterResponse = message_class("inference.SystemSharedMemoryRegisterResponse")
SystemSharedMemoryUnregisterRequest = message_class("inference.SystemSharedMemoryUnregisterRequest")
SystemSharedMemoryUnregisterResponse = message_class("inference.SystemSharedMemoryUnregisterResponse")
CudaSharedMemoryStatusRequest = message_class("inference.CudaSharedMemoryStatusRequest")
CudaSharedMemoryStatusResponse = message_class("inference.CudaSharedMemoryStatusResponse")
CudaSharedMemoryRegisterRequest = message_class("inference.CudaSharedMemoryRegisterRequest")
CudaSharedMemoryRegisterResponse = message_class("inference.CudaSharedMemoryRegisterResponse")
CudaSharedMemoryUnregisterRequest = message_class("inference.CudaSharedMemoryUnregisterRequest")
CudaSharedMemoryUnregisterResponse = message_class("inference.CudaSharedMemoryUnregisterResponse")

# Settings
TraceSettingRequest = message_class("inference.TraceSettingRequest")
TraceSettingResponse = message_class("inference.TraceSettingResponse")
LogSettingsRequest = message_class("inference.LogSettingsRequest")
LogSettingsResponse = message_class("inference.LogSettingsResponse")
