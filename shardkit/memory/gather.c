/* The rows of a batch, from wherever they lie in memory into one array, without Python.
 *
 * Rows of a shuffled batch lie anywhere in files of many GB, so that each begins with a miss of all
 * caches, and a processor that copies them one after another waits for each. Here the first bytes
 * of the row that comes AHEAD rows later are asked for before a row is copied: they arrive
 * meanwhile.
 *
 * All ranges are checked before anything is copied, and what they lie in is held for the call. No
 * thread is made, and the GIL is released: two threads that call this copy at once.
 */
#include <stdint.h>
#include <string.h>

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* How many rows ahead of the copy, and how much of each. What follows in a longer row the processor
 * fetches by itself, as it does for any memory that is read in order. Into the second cache: few
 * lines can be on their way to the first at once, and 512 rows of 1 KB took 52 us so, for 27. */
enum { AHEAD = 8, MOST_PREFETCHED = 4096, CACHE_LINE = 64, SECOND_CACHE = 2 };

typedef struct {
    const unsigned char *at;
    size_t size;
} Row;

static inline void prefetch(const Row *row)
{
    size_t size = row->size < MOST_PREFETCHED ? row->size : MOST_PREFETCHED;
    for (size_t at = 0; at < size; at += CACHE_LINE)
        __builtin_prefetch(row->at + at, 0, SECOND_CACHE);
}

static inline void prefetch_later(const Row *rows, Py_ssize_t i, Py_ssize_t count)
{
    if (i + AHEAD < count)
        prefetch(&rows[i + AHEAD]);
}

static void prefetch_first(const Row *rows, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count && i < AHEAD; i++)
        prefetch(&rows[i]);
}

static void copy(const Row *rows, Py_ssize_t count, unsigned char *out)
{
    prefetch_first(rows, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        prefetch_later(rows, i, count);
        memcpy(out, rows[i].at, rows[i].size);
        out += rows[i].size;
    }
}

/* --- numbers that become wider ---------------------------------------------------------------- */

/* Each item of a row as a number of another size; the largest of all is returned. `memcpy` is one
 * load: rows lie at any address. */
#define WIDEN(name, from, to)                                                                     \
    static uint32_t name(const Row *rows, Py_ssize_t count, unsigned char *bytes)                 \
    {                                                                                             \
        to *out = (to *)bytes;                                                                    \
        from largest = 0;                                                                         \
        prefetch_first(rows, count);                                                              \
        for (Py_ssize_t i = 0; i < count; i++) {                                                  \
            size_t items = rows[i].size / sizeof(from);                                           \
            prefetch_later(rows, i, count);                                                       \
            for (size_t k = 0; k < items; k++) {                                                  \
                from item;                                                                        \
                memcpy(&item, rows[i].at + k * sizeof(from), sizeof(from));                       \
                if (sizeof(from) == 4)                                                            \
                    largest = item > largest ? item : largest;                                    \
                out[k] = (to)item;                                                                \
            }                                                                                     \
            out += items;                                                                         \
        }                                                                                         \
        return largest;                                                                           \
    }

WIDEN(widen_1_to_4, uint8_t, int32_t)
WIDEN(widen_2_to_4, uint16_t, int32_t)
WIDEN(widen_4_to_4, uint32_t, int32_t)
WIDEN(widen_1_to_8, uint8_t, int64_t)
WIDEN(widen_2_to_8, uint16_t, int64_t)
WIDEN(widen_4_to_8, uint32_t, int64_t)

typedef uint32_t (*Widen)(const Row *, Py_ssize_t, unsigned char *);

static Widen choose_widen(Py_ssize_t from, Py_ssize_t to)
{
    switch (from * 10 + to) {
    case 14: return widen_1_to_4;
    case 24: return widen_2_to_4;
    case 44: return widen_4_to_4;
    case 18: return widen_1_to_8;
    case 28: return widen_2_to_8;
    case 48: return widen_4_to_8;
    }
    return NULL;
}

/* --- Python ----------------------------------------------------------------------------------- */

/* What a call was given, held until release(): the memory that rows lie in, which of it each row is
 * in, where it starts there, how many bytes it has; and what becomes of them all. */
typedef struct {
    Py_buffer *memory;
    Py_ssize_t num_memory, count;
    Py_buffer which, starts, sizes, out;
    Row *rows;
} Call;

static void release(Call *call)
{
    for (Py_ssize_t i = 0; i < call->num_memory; i++)
        PyBuffer_Release(&call->memory[i]);
    PyMem_Free(call->memory);
    PyMem_Free(call->rows);
    PyBuffer_Release(&call->which);
    PyBuffer_Release(&call->starts);
    PyBuffer_Release(&call->sizes);
    PyBuffer_Release(&call->out);
}

/* The bytes of each value; what is held is counted, for release(). */
static int hold(Call *call, PyObject *values)
{
    Py_ssize_t count = PySequence_Size(values);
    if (count < 0 || !(call->memory = PyMem_Calloc(count + 1, sizeof *call->memory)))
        return count < 0 ? -1 : (PyErr_NoMemory(), -1);
    for (; call->num_memory < count; call->num_memory++) {
        PyObject *value = PySequence_GetItem(values, call->num_memory);
        int failed = !value ||
                     PyObject_GetBuffer(value, &call->memory[call->num_memory], PyBUF_SIMPLE);
        Py_XDECREF(value);
        if (failed)
            return -1;
    }
    return 0;
}

/* Where each row lies; -1 if one does not lie inside its memory, or if they are not `needed` bytes
 * together. */
static int find_rows(const Call *call, size_t needed)
{
    const int64_t *which = call->which.buf, *starts = call->starts.buf, *sizes = call->sizes.buf;
    for (Py_ssize_t i = 0; i < call->count; i++) {
        if (which[i] < 0 || which[i] >= call->num_memory)
            return -1;
        const Py_buffer *memory = &call->memory[which[i]];
        if (starts[i] < 0 || sizes[i] < 0 || sizes[i] > memory->len ||
            starts[i] > memory->len - sizes[i] || (size_t)sizes[i] > needed)
            return -1;
        needed -= sizes[i];
        call->rows[i] = (Row){(const unsigned char *)memory->buf + starts[i], sizes[i]};
    }
    return needed ? -1 : 0;
}

static int are_whole(const Call *call, size_t step)
{
    for (Py_ssize_t i = 0; i < call->count; i++)
        if (call->rows[i].size % step)
            return 0;
    return 1;
}

/* Everything but the copying: `from` bytes of a row become `to` bytes of `out`. */
static int prepare(Call *call, PyObject *memory, Py_ssize_t from, Py_ssize_t to)
{
    call->count = call->sizes.len / 8;
    if (call->which.len != call->count * 8 || call->starts.len != call->count * 8 ||
        call->sizes.len % 8 || call->out.len % to) {
        PyErr_SetString(PyExc_ValueError, "gather: arguments of different lengths");
        return -1;
    }
    if (!(call->rows = PyMem_Malloc((call->count + 1) * sizeof *call->rows))) {
        PyErr_NoMemory();
        return -1;
    }
    if (hold(call, memory))
        return -1;
    if (find_rows(call, (size_t)(call->out.len / to * from)) || !are_whole(call, from)) {
        PyErr_SetString(PyExc_ValueError,
                        "gather: a row is outside its memory, or out has not their size");
        return -1;
    }
    return 0;
}

/* copy(memory: B' buffers, which (B,), starts (B,), sizes (B,) int64, out) */
static PyObject *py_copy(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *memory;
    Call call = {0};
    if (!PyArg_ParseTuple(args, "Oy*y*y*w*", &memory, &call.which, &call.starts, &call.sizes,
                          &call.out))
        return NULL;
    int failed = prepare(&call, memory, 1, 1);
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        copy(call.rows, call.count, call.out.buf);
        Py_END_ALLOW_THREADS
    }
    release(&call);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* widen(memory, which, starts, sizes, out, from, to): items of `from` bytes become items of `to`.
 * Returns the largest item, of those of 4 bytes. */
static PyObject *py_widen(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *memory;
    Call call = {0};
    Py_ssize_t from, to;
    if (!PyArg_ParseTuple(args, "Oy*y*y*w*nn", &memory, &call.which, &call.starts, &call.sizes,
                          &call.out, &from, &to))
        return NULL;
    uint32_t largest = 0;
    Widen widen = choose_widen(from, to);
    int failed = 1;
    if (!widen)
        PyErr_SetString(PyExc_ValueError, "gather: items of these sizes are not widened");
    else if (!(failed = prepare(&call, memory, from, to))) {
        Py_BEGIN_ALLOW_THREADS
        largest = widen(call.rows, call.count, call.out.buf);
        Py_END_ALLOW_THREADS
    }
    release(&call);
    return failed ? NULL : PyLong_FromUnsignedLong(largest);
}

static PyMethodDef methods[] = {
    {"copy", py_copy, METH_VARARGS, NULL},
    {"widen", py_widen, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_gather", .m_methods = methods,
};

PyMODINIT_FUNC PyInit__gather(void) { return PyModuleDef_Init(&definition); }
