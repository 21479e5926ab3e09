/* cuBLAS and cuBLASLt: the duration of a matrix multiplication follows from its floating-point operations. */
#include "device.h"
#include <library_types.h>

/* These declarations are from cublasLt.h. That header needs other headers, which torch's packages lack. */
enum { CUBLASLT_MATMUL_DESC_TRANSA = 3, CUBLASLT_MATMUL_DESC_TRANSB = 4, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5 };
typedef struct {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

typedef struct {
    void *stream;
    int math, pointer_mode;
} Handle;

static Handle *handle_of(void *h) { return h; }

/* A multiplication of half-precision numbers runs on tensor cores. */
static Ns product_duration(double flops, bool half) { return 3500 + (Ns)(flops / (half ? 80e3 : 12e3)); }

static int product(void *stream, const char *kind, bool half, int ta, int tb, double m, double n, double k, double batch) {
    static const char *letters[] = {"n", "t", "c"};
    char name[160];
    bool large = m * n * batch >= 128 * 128 * 16;
    if (half)
        snprintf(name, sizeof name, "ampere_%s_s16816gemm_%s_%s_ldg8_f2f_stages_64x3_%s%s", kind, kind, large ? "128x64" : "64x64", letters[ta % 3], letters[tb % 3]);
    else
        snprintf(name, sizeof name, "ampere_%s_%s_%s%s", kind, large ? "128x64" : "32x32_sliced1x4", letters[ta % 3], letters[tb % 3]);
    double side = large ? 128 : half ? 64 : 32;
    dim3 grid = {(unsigned)(m / side) + 1, (unsigned)(n / 64) + 1, (unsigned)batch}, block = {256, 1, 1};
    return library_kernel(stream, keep_name(name), grid, block, product_duration(2 * m * n * k * batch, half)) ? 13 : 0;
}

API int cublasCreate_v2(void **handle) {
    *handle = calloc(1, sizeof(Handle));
    return 0;
}
API int cublasDestroy_v2(void *handle) {
    free(handle);
    return 0;
}
API int cublasSetStream_v2(void *h, void *stream) {
    handle_of(h)->stream = stream;
    return 0;
}
API int cublasGetStream_v2(void *h, void **stream) {
    *stream = handle_of(h)->stream;
    return 0;
}
API int cublasSetMathMode(void *h, int mode) {
    handle_of(h)->math = mode;
    return 0;
}
API int cublasGetMathMode(void *h, int *mode) {
    *mode = handle_of(h)->math;
    return 0;
}
API int cublasSetPointerMode_v2(void *h, int mode) {
    handle_of(h)->pointer_mode = mode;
    return 0;
}
API int cublasGetPointerMode_v2(void *h, int *mode) {
    *mode = handle_of(h)->pointer_mode;
    return 0;
}
API int cublasSetWorkspace_v2(void *h, void *workspace, size_t bytes) {
    (void)h, (void)workspace, (void)bytes;
    return 0;
}
API int cublasSetSmCountTarget(void *h, int count) {
    (void)h, (void)count;
    return 0;
}
API int cublasSgemm_v2(void *h, int ta, int tb, int m, int n, int k) { return product(handle_of(h)->stream, "sgemm", false, ta, tb, m, n, k, 1); }
API int cublasDgemm_v2(void *h, int ta, int tb, int m, int n, int k) { return product(handle_of(h)->stream, "dgemm", false, ta, tb, m, n, k, 1); }
API int cublasSgemmEx(void *h, int ta, int tb, int m, int n, int k) { return product(handle_of(h)->stream, "fp16", true, ta, tb, m, n, k, 1); }

static const char *kind_of(cudaDataType type, bool *half) {
    *half = type == CUDA_R_16F || type == CUDA_R_16BF;
    return type == CUDA_R_16F ? "fp16" : type == CUDA_R_16BF ? "bf16" : type == CUDA_R_64F ? "dgemm" : "sgemm";
}
API int cublasGemmEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, cudaDataType type) {
    bool half;
    const char *kind = kind_of(type, &half);
    (void)alpha, (void)a;
    return product(handle_of(h)->stream, kind, half, ta, tb, m, n, k, 1);
}
API int cublasSgemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa, const void *b, int ldb,
                                  long long sb, const void *beta, void *c, int ldc, long long sc, int batch) {
    (void)alpha, (void)a, (void)lda, (void)sa, (void)b, (void)ldb, (void)sb, (void)beta, (void)c, (void)ldc, (void)sc;
    return product(handle_of(h)->stream, "sgemm", false, ta, tb, m, n, k, batch);
}
API int cublasDgemmStridedBatched(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int lda, long long sa, const void *b, int ldb,
                                  long long sb, const void *beta, void *c, int ldc, long long sc, int batch) {
    (void)alpha, (void)a, (void)lda, (void)sa, (void)b, (void)ldb, (void)sb, (void)beta, (void)c, (void)ldc, (void)sc;
    return product(handle_of(h)->stream, "dgemm", false, ta, tb, m, n, k, batch);
}
API int cublasGemmStridedBatchedEx(void *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, cudaDataType type, int lda, long long sa,
                                   const void *b, cudaDataType tb_, int ldb, long long sb, const void *beta, void *c, cudaDataType tc, int ldc, long long sc, int batch) {
    bool half;
    const char *kind = kind_of(type, &half);
    (void)alpha, (void)a, (void)lda, (void)sa, (void)b, (void)tb_, (void)ldb, (void)sb, (void)beta, (void)c, (void)tc, (void)ldc, (void)sc;
    return product(handle_of(h)->stream, kind, half, ta, tb, m, n, k, batch);
}
static int vector_kernel(void *h, const char *name, double length) {
    dim3 grid = {(unsigned)(length / 1024) + 1, 1, 1}, block = {128, 1, 1};
    return library_kernel(handle_of(h)->stream, name, grid, block, 2500 + (Ns)(length / 100)) ? 13 : 0;
}
API int cublasSgemv_v2(void *h, int trans, int m, int n) { return vector_kernel(h, trans ? "gemv2T_kernel_val<int, int, float>" : "gemvNSP_kernel<float>", (double)m * n); }
API int cublasDgemv_v2(void *h, int trans, int m, int n) { return vector_kernel(h, trans ? "gemv2T_kernel_val<int, int, double>" : "gemvNSP_kernel<double>", (double)m * n); }
API int cublasSdot_v2(void *h, int n) { return vector_kernel(h, "dot_kernel<float, 128, 0>", n); }
API int cublasDdot_v2(void *h, int n) { return vector_kernel(h, "dot_kernel<double, 128, 0>", n); }

/* cuBLASLt */

typedef struct {
    uint64_t rows, columns;
    int batch;
    cudaDataType type;
} Layout;
typedef struct {
    int transpose_a, transpose_b;
} Operation;

API size_t cublasLtGetVersion(void) { return 130101; }
API int cublasLtCreate(void **handle) {
    *handle = calloc(1, 64);
    return 0;
}
API int cublasLtMatmulDescCreate(void **description, int compute, int scale) {
    (void)compute, (void)scale;
    *description = calloc(1, sizeof(Operation));
    return 0;
}
API int cublasLtMatmulDescDestroy(void *description) {
    free(description);
    return 0;
}
API int cublasLtMatmulDescSetAttribute(void *description, int attribute, const void *value, size_t bytes) {
    (void)bytes;
    Operation *o = description;
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) o->transpose_a = *(const int *)value;
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) o->transpose_b = *(const int *)value;
    return 0;
}
API int cublasLtMatrixLayoutCreate(void **layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t leading) {
    (void)leading;
    Layout *l = calloc(1, sizeof *l);
    *l = (Layout){rows, columns, 1, type};
    *layout = l;
    return 0;
}
API int cublasLtMatrixLayoutDestroy(void *layout) {
    free(layout);
    return 0;
}
API int cublasLtMatrixLayoutSetAttribute(void *layout, int attribute, const void *value, size_t bytes) {
    (void)bytes;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) ((Layout *)layout)->batch = *(const int *)value;
    return 0;
}
API int cublasLtMatmulPreferenceCreate(void **preference) {
    *preference = calloc(1, 64);
    return 0;
}
API int cublasLtMatmulPreferenceDestroy(void *preference) {
    free(preference);
    return 0;
}
API int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    (void)preference, (void)attribute, (void)value, (void)bytes;
    return 0;
}
API int cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, void *a, void *b, void *c, void *d, void *preference, int wanted,
                                       cublasLtMatmulHeuristicResult_t *results, int *count) {
    (void)handle, (void)description, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)wanted;
    memset(results, 0, sizeof *results);
    *count = 1;
    return 0;
}
API int cublasLtMatmul(void *handle, void *description, const void *alpha, const void *a, void *a_layout, const void *b, void *b_layout,
                       const void *beta, const void *c, void *c_layout, void *d, void *d_layout, const void *algorithm, void *workspace,
                       size_t bytes, void *stream) {
    (void)handle, (void)alpha, (void)a, (void)b, (void)b_layout, (void)beta, (void)c, (void)c_layout, (void)d, (void)algorithm, (void)workspace, (void)bytes;
    Operation *o = description;
    Layout *out = d_layout, *left = a_layout;
    bool half;
    const char *kind = kind_of(left->type, &half);
    double k = out->rows ? (double)left->rows * left->columns / out->rows : 0;
    return product(stream, kind, half, o->transpose_a, o->transpose_b, out->rows, out->columns, k, out->batch);
}
