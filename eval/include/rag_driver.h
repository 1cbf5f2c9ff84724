// rag_driver.h: the table of a source's functions, for the main() of `rag_driver.cpp`. Included after the source, which
// defines RAG_ENTRIES as a list of {"name", function}.
#pragma once
#include <tvm/ffi/c_api.h>

struct RagEntry { const char* name; int (*function)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*); };
extern "C" { extern const RagEntry rag_entries[]; }  // the last one has no name

#ifdef RAG_ENTRIES
const RagEntry rag_entries[] = { RAG_ENTRIES, {nullptr, nullptr} };
#ifdef __CUDACC__
#include "rag_driver.cpp"
#endif
#endif
