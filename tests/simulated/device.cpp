// A second device for PyTorch on Linux, so that accelerator code is tested where there is no accelerator. Its memory is
// the host's and its operations are the CPU's, but like Metal it refuses NumPy, float64, operands of two devices, and
// more memory than it has: SIMULATED_LIMIT_MIB.
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>

namespace {

using at::IntArrayRef, at::Tensor;
using Type = std::optional<at::ScalarType>;
using MaybeTensor = std::optional<Tensor>;
const c10::Device DEVICE(c10::DeviceType::PrivateUse1, 0);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1> {
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  void synchronizeDevice(c10::DeviceIndex) const override {}  // the CPU's operations end before they return
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
};
const bool hooked = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

struct Memory final : c10::Allocator {
  static constexpr size_t HEAD = c10::gAlignment;  // before each block: its size, which freeing must know
  static inline std::atomic<size_t> held{0};

  static size_t limit() {
    const char* mib = std::getenv("SIMULATED_LIMIT_MIB");
    return size_t{mib ? std::strtoul(mib, nullptr, 10) : 1024} << 20;
  }
  c10::DataPtr allocate(size_t size) override {
    if (held + size > limit()) {
      const auto mib = [](size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
      TORCH_CHECK_WITH(OutOfMemoryError, false, "simulated backend out of memory (simulated allocated: ", mib(held),
                       ", max allowed: ", mib(limit()), "). Tried to allocate ", mib(size), ".");
    }
    auto* block = static_cast<char*>(c10::alloc_cpu(size + HEAD));
    *reinterpret_cast<size_t*>(block) = size;
    held += size;
    return {block + HEAD, block, &Memory::release, DEVICE};
  }
  static void release(void* block) {
    held -= *static_cast<size_t*>(block);
    c10::free_cpu(block);
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};
Memory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory);

at::ScalarType allowed(Type wanted, std::optional<c10::Device> device) {
  TORCH_CHECK(!device || device->index() <= 0, "simulated: invalid device index ", int{device->index()}, "; there is one");
  const auto type = wanted.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK_TYPE(type != at::kDouble && type != at::kComplexDouble, "Cannot convert a simulated Tensor to ",
                   type == at::kDouble ? "float64" : "complex128", " dtype as the device doesn't support it.");
  return type;
}

const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

Tensor empty(IntArrayRef size, Type type, std::optional<at::Layout>, std::optional<c10::Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, KEYS, allowed(type, device), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, Type type, std::optional<at::Layout>,
                     std::optional<c10::Device> device, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, allowed(type, device));
}

Tensor on_host(const Tensor& tensor) {  // the same bytes, as a CPU tensor
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  on_host(target).copy_(on_host(source));
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  at::native::resize_(target, source.sizes());
  return copy_from(source, target, false);
}

void refuse_host(const c10::IValue& value) {
  if (value.isTensor()) {
    const Tensor& tensor = value.toTensor();
    // A number in a CPU tensor is welcome on every device.
    TORCH_CHECK(!tensor.defined() || !tensor.is_cpu() || tensor.dim() == 0,
                "Expected all tensors to be on the same device, but found at least two devices, simulated:0 and cpu!");
  } else if (value.isTensorList()) {  // not lists of optional tensors: every device takes indices from the host
    for (const Tensor& each : value.toTensorVector()) refuse_host(each);
  }
}

void on_the_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  for (const auto& value : torch::jit::last(*stack, operation.schema().arguments().size())) refuse_host(value);
  at::native::cpu_fallback(operation, stack);
}

// PyTorch asks devices that it does not know for their own convolutions.
Tensor convolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, IntArrayRef stride,
                   IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef more, int64_t groups) {
  for (const Tensor& operand : {input, weight}) refuse_host(operand);
  const MaybeTensor held = bias && bias->defined() ? MaybeTensor(on_host(*bias)) : std::nullopt;
  return at::convolution(on_host(input), on_host(weight), held, stride, padding, dilation, transposed, more, groups)
      .to(DEVICE);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding,
    IntArrayRef dilation, bool transposed, IntArrayRef more, int64_t groups, std::array<bool, 3> wanted) {
  const int64_t outputs = transposed ? weight.size(1) * groups : weight.size(0);
  auto [a, b, c] = at::convolution_backward(on_host(gradient), on_host(input), on_host(weight), IntArrayRef(outputs),
                                            stride, padding, dilation, transposed, more, groups, wanted);
  const auto placed = [](const Tensor& tensor) { return tensor.defined() ? tensor.to(DEVICE) : tensor; };
  return {placed(a), placed(b), placed(c)};
}

// Its schema does not say that it writes to the running statistics, so PyTorch's fallback would not write them back.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                              const MaybeTensor& mean, const MaybeTensor& variance, bool training,
                                              double momentum, double epsilon) {
  const auto held = [](const MaybeTensor& tensor) {
    return tensor && tensor->defined() ? MaybeTensor(on_host(*tensor)) : std::nullopt;
  };
  auto [a, b, c] = at::native_batch_norm(on_host(input), held(weight), held(bias), held(mean), held(variance), training,
                                         momentum, epsilon);
  return {a.to(DEVICE), b.to(DEVICE), c.to(DEVICE)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", at::native::resize_);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_", at::native::set_cpu_);
  m.impl("native_batch_norm", batch_norm);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

// Which operations autocast lowers, and which it keeps in float32: those of CUDA.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

#define LOWERED(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define KEPT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define RAISED(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(LOWERED)
  AT_FORALL_FP32(KEPT)
  AT_FORALL_FP32_SET_OPT_DTYPE(RAISED)
}

}  // namespace

// For the pretend Mac, whose Metal has a counter of its own.
extern "C" size_t simulated_held() { return Memory::held; }
