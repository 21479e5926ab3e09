/* cuDNN's older calls, as torch uses them when TORCH_CUDNN_V8_API_DISABLED=1: convolutions and batch normalization. */
#include "device.h"

typedef struct {
    void *stream;
} Handle;
/* The descriptor of a tensor, a filter or a convolution. Only sizes matter. */
typedef struct {
    int type, dimensions, sizes[8], groups;
} Description;

static double elements(const Description *d) {
    double n = 1;
    for (int i = 0; i < d->dimensions; i++) n *= d->sizes[i];
    return n;
}

API int cudnnCreate(void **handle) {
    *handle = calloc(1, sizeof(Handle));
    return 0;
}
API int cudnnDestroy(void *handle) {
    free(handle);
    return 0;
}
API int cudnnSetStream(Handle *h, void *stream) {
    h->stream = stream;
    return 0;
}
API int cudnnGetStream(Handle *h, void **stream) {
    *stream = h->stream;
    return 0;
}
API size_t cudnnGetVersion(void) { return 92400; }
API size_t cudnnGetCudartVersion(void) { return 13000; }
API int cudnnGetProperty(int what, int *value) {
    *value = what == 0 ? 9 : what == 1 ? 24 : 0;
    return 0;
}
API const char *cudnnGetErrorString(int status) { return status ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_SUCCESS"; }
API void cudnnGetLastErrorString(char *text, size_t size) { snprintf(text, size, "not simulated"); }

#define DESCRIPTION(what)                                                                                                          \
    API int cudnnCreate##what##Descriptor(void **d) {                                                                              \
        *d = calloc(1, sizeof(Description));                                                                                       \
        return 0;                                                                                                                  \
    }                                                                                                                              \
    API int cudnnDestroy##what##Descriptor(void *d) {                                                                              \
        free(d);                                                                                                                   \
        return 0;                                                                                                                  \
    }
DESCRIPTION(Tensor)
DESCRIPTION(Filter)
DESCRIPTION(Convolution)
DESCRIPTION(Activation)
DESCRIPTION(Dropout)

static int set_sizes(Description *d, int type, int dimensions, const int *sizes) {
    d->type = type;
    d->dimensions = dimensions > 8 ? 8 : dimensions;
    memcpy(d->sizes, sizes, d->dimensions * sizeof(int));
    return 0;
}
API int cudnnSetTensorNdDescriptor(Description *d, int type, int dimensions, const int *sizes, const int *strides) {
    (void)strides;
    return set_sizes(d, type, dimensions, sizes);
}
API int cudnnGetTensorNdDescriptor(Description *d, int wanted, int *type, int *dimensions, int *sizes, int *strides) {
    *type = d->type;
    *dimensions = d->dimensions;
    int stride = 1;
    for (int i = d->dimensions - 1; i >= 0; i--) {
        if (i < wanted) sizes[i] = d->sizes[i], strides[i] = stride;
        stride *= d->sizes[i];
    }
    return 0;
}
API int cudnnSetFilterNdDescriptor(Description *d, int type, int format, int dimensions, const int *sizes) {
    (void)format;
    return set_sizes(d, type, dimensions, sizes);
}
API int cudnnSetConvolutionNdDescriptor(Description *d, int dimensions, const int *pads, const int *strides, const int *dilations, int mode, int type) {
    (void)dimensions, (void)pads, (void)strides, (void)dilations, (void)mode;
    d->type = type;
    return 0;
}
API int cudnnSetConvolutionGroupCount(Description *d, int groups) {
    d->groups = groups;
    return 0;
}
API int cudnnSetConvolutionMathType(Description *d, int type) {
    (void)d, (void)type;
    return 0;
}
API int cudnnSetActivationDescriptor(Description *d, int mode, int nan, double coefficient) {
    (void)d, (void)mode, (void)nan, (void)coefficient;
    return 0;
}

/* The device has only algorithm number 1, with a workspace of 1 MiB. */
typedef struct {
    int algorithm, status;
    float time;
    size_t memory;
    int determinism, math, reserved[3];
} Performance;
#define WORKSPACE (1 << 20)
static int one_algorithm(int *found, Performance *results) {
    memset(results, 0, sizeof *results);
    results->algorithm = 1;
    results->time = 0.1f;
    results->memory = WORKSPACE;
    *found = 1;
    return 0;
}
#define ALGORITHM(name)                                                                                                            \
    API int cudnnGetConvolution##name##Algorithm_v7(void *h, void *a, void *b, void *c, void *d, int wanted, int *found, Performance *results) { \
        (void)h, (void)a, (void)b, (void)c, (void)d, (void)wanted;                                                                 \
        return one_algorithm(found, results);                                                                                      \
    }                                                                                                                              \
    API int cudnnFindConvolution##name##AlgorithmEx(void *h, void *a, void *ap, void *b, void *bp, void *c, void *d, void *dp, int wanted, int *found, \
                                                    Performance *results, void *workspace, size_t bytes) {                        \
        (void)h, (void)a, (void)ap, (void)b, (void)bp, (void)c, (void)d, (void)dp, (void)wanted, (void)workspace, (void)bytes;     \
        return one_algorithm(found, results);                                                                                      \
    }                                                                                                                              \
    API int cudnnGetConvolution##name##WorkspaceSize(void *h, void *a, void *b, void *c, void *d, int algorithm, size_t *bytes) {  \
        (void)h, (void)a, (void)b, (void)c, (void)d, (void)algorithm;                                                              \
        *bytes = WORKSPACE;                                                                                                        \
        return 0;                                                                                                                  \
    }
ALGORITHM(Forward)
ALGORITHM(BackwardData)
ALGORITHM(BackwardFilter)

static int convolution(Handle *h, const char *name, const Description *filter, const Description *output) {
    bool half = output->type == 2 || output->type == 9; /* CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16 */
    double flops = 2 * elements(output) * elements(filter) / (filter->sizes[0] ? filter->sizes[0] : 1);
    dim3 grid = {(unsigned)(elements(output) / 8192) + 1, 1, 1}, block = {256, 1, 1};
    return library_kernel(h->stream, name, grid, block, 5000 + (Ns)(flops / (half ? 60e3 : 9e3))) ? 8 : 0;
}
API int cudnnConvolutionForward(Handle *h, const void *alpha, Description *x, const void *xp, Description *w, const void *wp, Description *c, int algorithm,
                                void *workspace, size_t bytes, const void *beta, Description *y, void *yp) {
    (void)alpha, (void)x, (void)xp, (void)wp, (void)c, (void)algorithm, (void)workspace, (void)bytes, (void)beta, (void)yp;
    return convolution(h, "void cudnn::ops::implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 0>", w, y);
}
API int cudnnConvolutionBackwardData(Handle *h, const void *alpha, Description *w, const void *wp, Description *dy, const void *dyp, Description *c, int algorithm,
                                     void *workspace, size_t bytes, const void *beta, Description *dx, void *dxp) {
    (void)alpha, (void)wp, (void)dyp, (void)c, (void)algorithm, (void)workspace, (void)bytes, (void)beta, (void)dx, (void)dxp;
    return convolution(h, "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>", w, dy);
}
API int cudnnConvolutionBackwardFilter(Handle *h, const void *alpha, Description *x, const void *xp, Description *dy, const void *dyp, Description *c, int algorithm,
                                       void *workspace, size_t bytes, const void *beta, Description *dw, void *dwp) {
    (void)alpha, (void)x, (void)xp, (void)dyp, (void)c, (void)algorithm, (void)workspace, (void)bytes, (void)beta, (void)dwp;
    return convolution(h, "void cudnn::cnn::wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>", dw, dy);
}

static int normalization(Handle *h, const char *name, const Description *x) {
    dim3 grid = {x->dimensions > 1 ? (unsigned)x->sizes[1] : 1, 1, 1}, block = {512, 1, 1};
    return library_kernel(h->stream, name, grid, block, 2500 + (Ns)(elements(x) * 12 / 700)) ? 8 : 0;
}
API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *h, int mode, int ops, void *x, void *z, void *y, void *s, void *a, size_t *bytes) {
    (void)h, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)s, (void)a;
    *bytes = 0;
    return 0;
}
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *h, int mode, int ops, void *x, void *y, void *dy, void *dz, void *dx, void *s, void *a, size_t *bytes) {
    (void)h, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)s, (void)a;
    *bytes = 0;
    return 0;
}
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *h, int mode, int ops, void *a, void *x, size_t *bytes) {
    (void)h, (void)mode, (void)ops, (void)a, (void)x;
    *bytes = 0;
    return 0;
}
API int cudnnBatchNormalizationForwardTrainingEx(Handle *h, int mode, int ops, const void *alpha, const void *beta, Description *x) {
    (void)mode, (void)ops, (void)alpha, (void)beta;
    return normalization(h, "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1, true>", x);
}
API int cudnnBatchNormalizationBackwardEx(Handle *h, int mode, int ops, const void *a, const void *b, const void *c, const void *d, Description *x) {
    (void)mode, (void)ops, (void)a, (void)b, (void)c, (void)d;
    return normalization(h, "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>", x);
}
API int cudnnBatchNormalizationForwardInference(Handle *h, int mode, const void *alpha, const void *beta, Description *x) {
    (void)mode, (void)alpha, (void)beta;
    return normalization(h, "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>", x);
}
API int cudnnDropoutGetStatesSize(void *h, size_t *bytes) {
    (void)h;
    *bytes = 1024;
    return 0;
}
