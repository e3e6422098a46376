// CUDA's place in a CPU build of PyTorch, taken by the CPU: memory of its own kind, CUDA's checks of where tensors are,
// and every operation computed by the CPU's kernel. README.md says what that can show, and what it cannot.

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using Layout = std::optional<at::Layout>;
using Dtype = std::optional<at::ScalarType>;
using Format = std::optional<at::MemoryFormat>;

namespace {

constexpr auto CUDA = c10::DeviceType::CUDA;
constexpr DeviceIndex MOST_DEVICES = 8;

DeviceIndex num_devices = 0;
enum class Waiting { Ignored, Warned, Refused };
Waiting waiting = Waiting::Ignored;  // torch.cuda.set_sync_debug_mode
thread_local DeviceIndex current = 0;
thread_local int inside = 0;  // calls of an operation's CPU kernel, whose own copies are nobody's business

struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

// A program does what makes it wait until a real device has finished.
void wait_for_device(const std::string& what) {
  if (inside || waiting == Waiting::Ignored) return;
  TORCH_CHECK(waiting == Waiting::Warned, "called a synchronizing CUDA operation: ", what);
  TORCH_WARN("called a synchronizing CUDA operation: ", what);
}

Device on(std::optional<Device> device) {
  Device found = device.value_or(Device(CUDA, current));
  if (found.index() < 0) found = Device(CUDA, current);
  TORCH_CHECK(found.index() < num_devices, "CUDA error: invalid device ordinal");
  return found;
}

// ------------------------------------------------------------------------------------------------------------ memory

std::array<std::atomic<int64_t>, MOST_DEVICES> allocated, peak;

struct Block {
  void* start;
  size_t size;
  DeviceIndex device;
};

void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  allocated[block->device] -= static_cast<int64_t>(block->size);
  std::free(block->start);
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* start = nullptr;
    if (size && posix_memalign(&start, 64, size)) throw std::bad_alloc();
    if (size) std::memset(start, 0xAB, size);  // who reads what nobody has written sees odd numbers
    int64_t now = allocated[current] += static_cast<int64_t>(size);
    if (now > peak[current]) peak[current] = now;
    return {start, new Block{start, size, current}, &give_back, Device(CUDA, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
} allocator;

// ---------------------------------------------------------------------------------- devices as PyTorch asks for them

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return CUDA; }
  Device getDevice() const override { return Device(CUDA, current); }
  void setDevice(Device device) const override { current = on(device).index(); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  Device exchangeDevice(Device device) const override {
    Device before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return num_devices; }
  // One stream per device, on which everything is done as soon as it is asked for.
  c10::Stream getStream(Device device) const override { return c10::Stream(c10::Stream::DEFAULT, on(device)); }
  c10::Stream getDefaultStream(Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { wait_for_device("a stream"); }
  void synchronizeDevice(const DeviceIndex) const override { wait_for_device("a device"); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {
    *event = const_cast<Guard*>(this);  // anything that is not null
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { wait_for_device("an event"); }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// No generator: nothing in Esper draws on a device, and what tries to is refused by PyTorch.
struct CUDAHooks final : at::CUDAHooksInterface {  // PyTorch looks for it by this name
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return num_devices; }
  DeviceIndex deviceCount() const override { return num_devices; }
  DeviceIndex current_device() const override { return current; }
  DeviceIndex getCurrentDevice() const override { return current; }
  bool isPinnedPtr(const void*) const override { return false; }
};

// ------------------------------------------------------------------------------- any operation, by the CPU's kernel

const std::set<std::string> WAITING = {  // sizes of results that depend on values
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::equal",   "aten::bincount"};

// Operands of one call: all on one device, but numbers, and indices, may be on the CPU.
class Operands {
 public:
  Operands(const std::string& name, const torch::jit::Stack& stack, size_t count) : name_(name) {
    for (size_t place = stack.size() - count; place < stack.size(); ++place) take(stack[place]);
    for (const Tensor& tensor : on_cpu_) {
      if (tensor.dim() == 0) continue;
      TORCH_CHECK(indexing(), elsewhere(), " and cpu! (", name_, ")");
      wait_for_device(name_ + " with an index on the CPU");
    }
    if (WAITING.count(name_) || masked_) wait_for_device(name_);
  }

 private:
  bool indexing() const { return name_.find("index") != std::string::npos; }
  std::string elsewhere() const {
    return "Expected all tensors to be on the same device, but found at least two devices, " +
           (device_ ? device_->str() : "cuda");
  }
  void take(const Tensor& tensor) {
    if (!tensor.defined()) return;
    if (tensor.is_cpu()) return on_cpu_.push_back(tensor);
    if (!device_) device_ = tensor.device();
    TORCH_CHECK(*device_ == tensor.device(), elsewhere(), " and ", tensor.device(), "! (", name_, ")");
  }
  void take(const c10::IValue& value) {
    if (value.isTensor()) take(value.toTensor());
    else if (value.isTensorList())
      for (const Tensor& tensor : value.toTensorList()) take(tensor);
    else if (value.isOptionalTensorList())
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
        if (tensor) {
          masked_ |= tensor->scalar_type() == at::kBool;
          take(*tensor);
        }
  }

  std::string name_;
  std::optional<Device> device_;
  std::vector<Tensor> on_cpu_;
  bool masked_ = false;
};

void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (!inside) Operands(op.schema().name(), *stack, op.schema().arguments().size());
  Inside guard;
  at::native::cpu_fallback(op, stack, /*error_on_views=*/false);
}

// ----------------------------------------------------------------------- what makes, moves and looks at memory itself

Tensor empty(
    at::IntArrayRef size, Dtype dtype, Layout, std::optional<Device> device, std::optional<bool>, Format format) {
  c10::DeviceGuard guard(on(device));
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, Dtype dtype, Layout, std::optional<Device> device,
    std::optional<bool>) {
  c10::DeviceGuard guard(on(device));
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA), c10::dtype_or_default(dtype));
}

Tensor seen_by_cpu(const Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  auto storage = tensor.storage();  // kept as long as what looks at it
  auto* start = static_cast<char*>(storage.mutable_data());
  if (start) start += tensor.storage_offset() * tensor.itemsize();
  return at::from_blob(
      start, tensor.sizes(), tensor.strides(), [storage](void*) {}, at::TensorOptions().dtype(tensor.dtype()));
}

Tensor& copy_(Tensor& to, const Tensor& from, bool non_blocking) {
  if (to.is_same(from)) return to;
  if (to.is_cpu()) wait_for_device("copy to the CPU");
  else if (from.is_cpu() && !non_blocking) wait_for_device("copy from the CPU");
  Inside guard;
  at::AutoDispatchBelowADInplaceOrView below;
  seen_by_cpu(to).copy_(from.is_neg() ? seen_by_cpu(from).neg() : seen_by_cpu(from));
  return to;
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  Tensor target = to;
  return copy_(target, from, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  Tensor target = to;
  if (to.sizes() != from.sizes()) target.resize_(from.sizes());
  return copy_(target, from, false);
}

at::Scalar as_number(const Tensor& tensor) {
  wait_for_device("item()");
  Inside guard;
  at::AutoDispatchBelowADInplaceOrView below;
  return seen_by_cpu(tensor.detach()).item();
}

const Tensor& resize_(const Tensor& tensor, at::IntArrayRef size, Format format) {
  auto* own = tensor.unsafeGetTensorImpl();
  own->set_sizes_contiguous(size);
  size_t needed = at::detail::computeStorageNbytesContiguous(size, tensor.itemsize(), tensor.storage_offset());
  auto storage = tensor.storage();
  if (needed > storage.nbytes()) {
    c10::DeviceGuard guard(tensor.device());
    auto block = allocator.allocate(needed);
    if (storage.nbytes()) std::memcpy(block.get(), storage.data(), storage.nbytes());
    storage.set_data_ptr_noswap(std::move(block));
    storage.set_nbytes(needed);
  }
  if (format && *format != at::MemoryFormat::Preserve) own->empty_tensor_restride(*format);
  return tensor;
}

Tensor& set_to(Tensor& tensor, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return tensor;
}

Tensor as_strided(const Tensor& tensor, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

// --------------------------------------------------- kernels that CUDA has and the CPU has not: the cell of an LSTM

using Three = std::tuple<Tensor, Tensor, Tensor>;
using Maybe = std::optional<Tensor>;

bool there(const Maybe& tensor) { return tensor && tensor->defined(); }

// From both products [N, 4 H] and the memory [N, H] to hidden state, memory, and what backward needs.
Three lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& memory, const Maybe& b_ih, const Maybe& b_hh) {
  Tensor sum = input + hidden;
  if (there(b_ih)) sum = sum + *b_ih + *b_hh;
  auto parts = sum.chunk(4, 1);
  Tensor in = parts[0].sigmoid(), keep = parts[1].sigmoid(), cell = parts[2].tanh(), out = parts[3].sigmoid();
  Tensor next = keep * memory + in * cell;
  return {out * next.tanh(), next, at::cat({in, keep, cell, out}, 1)};
}

Three lstm_cell_backward(
    const Maybe& of_hidden, const Maybe& of_next, const Tensor& memory, const Tensor& next, const Tensor& gates,
    bool bias) {
  if (!there(of_hidden) && !there(of_next)) return {};
  auto parts = gates.chunk(4, 1);
  const Tensor &in = parts[0], &keep = parts[1], &cell = parts[2], &out = parts[3];
  Tensor shown = next.tanh(), zero = at::zeros_like(next);
  Tensor hidden = there(of_hidden) ? *of_hidden : zero;
  Tensor total = (there(of_next) ? *of_next : zero) + hidden * out * (1 - shown * shown);
  Tensor of_gates = at::cat(
      {total * cell * in * (1 - in), total * memory * keep * (1 - keep), total * in * (1 - cell * cell),
       hidden * shown * out * (1 - out)},
      1);
  return {of_gates, total * keep, bias ? of_gates.sum(0) : Tensor()};
}

int64_t plain_attention(
    const Tensor&, const Tensor&, const Tensor&, const Maybe&, double, bool, std::optional<double>, bool) {
  return 0;  // of the kernels that there are, the one that is made of other operations
}

}  // namespace

REGISTER_ALLOCATOR(CUDA, &allocator);

namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("_local_scalar_dense", as_number);
  library.impl("resize_", resize_);
  library.impl("set_.source_Storage_storage_offset", set_to);
  library.impl("as_strided", as_strided);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library.impl("_fused_sdp_choice", plain_attention);
  // These have kernels for every kind of device, which would come before the fallback.
  for (auto* name :
       {"convolution", "convolution_backward", "native_group_norm", "native_layer_norm", "native_layer_norm_backward"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
}

extern "C" {
void pretend_devices(int count) { num_devices = static_cast<DeviceIndex>(count); }
int pretend_current() { return current; }
int pretend_exchange(int device) {
  int before = current;
  if (device >= 0) current = on(Device(CUDA, static_cast<DeviceIndex>(device))).index();
  return before;
}
int64_t pretend_peak(int device) { return peak[device]; }
void pretend_answer_waiting(int how) { waiting = static_cast<Waiting>(how); }
}
