"""Public names of torch and Keras that nobody would type at another library: their insides, and what they import."""

from __future__ import annotations

NOBODY = {
    "torch": (
        "AVG AcceleratorError AggregationType AliasDb AnyType Argument ArgumentSpec AwaitType BFloat16Storage "
        "BenchmarkConfig BenchmarkExecutionStats Block BoolStorage BoolType BufferDict ByteStorage CallStack "
        "Capsule CharStorage ClassType Code CompilationUnit CompleteArgumentSpec ComplexDoubleStorage "
        "ComplexFloatStorage ComplexType ConcreteModuleType ConcreteModuleTypeBuilder DeepCopyMemoTable "
        "DeserializationStorageContext DeviceObjType DictType DisableTorchFunction DisableTorchFunctionSubclass "
        "DispatchKey DispatchKeySet DoubleStorage EnumType ErrorReport Event ExcludeDispatchKeyGuard FatalError "
        "FileCheck FloatStorage FloatType FunctionSchema Future FutureType Gradient GraphExecutorState HalfStorage "
        "IODescriptor InferredType IntStorage IntType InterfaceType JITException ListType LiteScriptModule "
        "LockingLogger LoggerBase LongStorage ModuleDict Node NoneType NoopLogger NumberType OperatorInfo "
        "OptionalType PRIVATE_OPS ParameterDict PyObjectType PyTorchFileReader PyTorchFileWriter QInt32Storage "
        "QInt8Storage QUInt2x4Storage QUInt4x2Storage QUInt8Storage RRefType SUM ScriptClass ScriptClassFunction "
        "ScriptDict ScriptDictIterator ScriptDictKeyIterator ScriptFunction ScriptList ScriptListIterator "
        "ScriptMethod ScriptModule ScriptModuleSerializer ScriptObject ScriptObjectProperty "
        "SerializationStorageContext ShortStorage StaticModule Storage StorageBase Stream StreamObjType StringType "
        "SymBool SymBoolType SymFloat SymInt SymIntType TYPE_CHECKING Tag TensorType ThroughputBenchmark "
        "TracingState TupleType Type TypedStorage USE_GLOBAL_DEPS USE_RTLD_GLOBAL_WITH_LIBTORCH UnionType "
        "UntypedStorage Use Value bit bits16 bits1x8 bits2x4 bits4x2 bits8 channels_last channels_last_3d classes "
        "classproperty compiled_with_cxx11_abi constant_pad_nd contiguous_format cpp fork functional futures "
        "get_device_module get_file_path has_lapack has_mkl has_openmp has_spectral hash_tensor histogram "
        "histogramdd import_ir_module import_ir_module_from_buffer init_num_threads int1 int2 int3 int4 int5 int6 "
        "int7 is_storage is_warn_always_enabled jagged layout legacy_contiguous_format library memory_format "
        "merge_type_from_type_comment monitor mtia overrides package parse_ir parse_schema parse_type_comment "
        "prepare_multiprocessing_environment preserve_format profiler_allow_cudagraph_cupti_lazy_reinit_cuda12 "
        "quasirandom return_types segment_reduce serialization set_flush_denormal set_warn_always storage "
        "sym_constrain_range sym_constrain_range_for_size sym_float sym_fresh_size sym_int sym_ite sym_max sym_min "
        "sym_not sym_sqrt sym_sum thread_safe_generator torch torch_version typename types uint1 uint2 uint3 uint4 "
        "uint5 uint6 uint7 unify_type_list wait windows xpu"
    ),
    "torch.nn.functional": (
        "BroadcastingList1 BroadcastingList2 BroadcastingList3 Callable DType Optional ScalingType SwizzleType "
        "TYPE_CHECKING assert_int_or_pair boolean_dispatch handle_torch_function has_torch_function "
        "has_torch_function_unary has_torch_function_variadic np reproducibility_notes sparse_support_notes "
        "tf32_notes torch"
    ),
    "torch.nn.init": ("Callable Literal ParamSpec Tensor TypeVar torch"),
    "torch.optim.lr_scheduler": (
        "Any Counter EPOCH_DEPRECATION_WARNING Literal Optimizer Self SupportsFloat TYPE_CHECKING Tensor TypedDict "
        "annotations bisect_right cast inf override partial ref wraps"
    ),
    "torch.Tensor": (
        "as_subclass ccol_indices col_indices const_data_ptr crow_indices dense_dim dim_order ger grad_dtype "
        "hash_tensor histogram index ipu is_coalesced is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested "
        "is_pinned is_quantized is_set_to is_shared is_sparse_csr is_vulkan is_xla is_xpu module_load mtia new "
        "new_empty_strided output_nr record_stream register_post_accumulate_grad_hook reinforce resize_as "
        "retains_grad row_indices solve storage_offset storage_type sum_to_size to_mkldnn to_padded_tensor "
        "untyped_storage vdot volatile xpu"
    ),
    "torch.nn.Module": ("T_destination call_super_init dump_patches"),
}
