// Takes NVTX's ranges in the place of Nsight, and appends each to the file NVTX_RECORD.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

void write(const char* what, const char* name) {
  std::FILE* const file = std::fopen(std::getenv("NVTX_RECORD"), "a");
  std::fprintf(file, "%s %s\n", what, name);
  std::fclose(file);
}

nvtxRangeId_t last = 0;

int push(const char* name) {
  write("push", name);
  return 0;
}

int pop() {
  write("pop", "");
  return 0;
}

nvtxRangeId_t start(const char* name) {
  write("start", name);
  return (nvtxRangeId_t{1} << 40) + ++last;  // Nsight's numbers do not fit into 32 bits, either
}

void end(nvtxRangeId_t range) {
  write("end", range == (nvtxRangeId_t{1} << 40) + last ? "last" : "other");
}

template <typename Function>
void set(NvtxFunctionTable table, int at, Function* function) {
  *table[at] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
      size <= NVTX_CBID_CORE_RangePop)
    return 0;
  set(table, NVTX_CBID_CORE_RangePushA, push);
  set(table, NVTX_CBID_CORE_RangePop, pop);
  set(table, NVTX_CBID_CORE_RangeStartA, start);
  set(table, NVTX_CBID_CORE_RangeEnd, end);
  return 1;
}
