/* The rows of a batch, from wherever they lie in memory into one array, without Python.
 *
 * Rows of a shuffled batch lie anywhere in files of many GB, so that each begins with a miss of all
 * caches, and a processor that copies them one after another waits for each. Here the first bytes
 * of the row that comes AHEAD rows later are asked for before a row is copied: they arrive
 * meanwhile.
 *
 * All ranges are checked before anything is copied, and what they lie in is held for the call. No
 * thread is made. Where much is copied the GIL is released, so that two threads copy at once.
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

/* glibc picks the function for the processor it runs on; no compiler flag is needed. */
#if defined(__x86_64__) && defined(__GLIBC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

enum { LEAST_WITHOUT_GIL = 1 << 20 };

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

/* Each item of a row as a number of another size, wherever the row lies. Said so, and not copied
 * item by item, the compiler widens many with one instruction: in a third of the time. */
#define WIDEN(name, from, to)                                                                     \
    FOR_EACH_PROCESSOR                                                                            \
    static void name(const Row *rows, Py_ssize_t count, unsigned char *bytes)                     \
    {                                                                                             \
        typedef from item __attribute__((aligned(1), may_alias));                                 \
        to *restrict out = (to *)bytes;                                                           \
        prefetch_first(rows, count);                                                              \
        for (Py_ssize_t i = 0; i < count; i++) {                                                  \
            const item *restrict row = (const item *)rows[i].at;                                  \
            size_t items = rows[i].size / sizeof(from);                                           \
            prefetch_later(rows, i, count);                                                       \
            for (size_t k = 0; k < items; k++)                                                    \
                out[k] = (to)row[k];                                                              \
            out += items;                                                                         \
        }                                                                                         \
    }

WIDEN(widen_1_to_4, uint8_t, int32_t)
WIDEN(widen_2_to_4, uint16_t, int32_t)
WIDEN(widen_4_to_4, uint32_t, int32_t)
WIDEN(widen_1_to_8, uint8_t, int64_t)
WIDEN(widen_2_to_8, uint16_t, int64_t)
WIDEN(widen_4_to_8, uint32_t, int64_t)
WIDEN(widen_8_to_8, uint64_t, int64_t)

typedef void (*Gather)(const Row *, Py_ssize_t, unsigned char *);

static Gather choose_gather(Py_ssize_t from, Py_ssize_t to)
{
    switch (from * 10 + to) {
    case 11: return copy;
    case 14: return widen_1_to_4;
    case 24: return widen_2_to_4;
    case 44: return widen_4_to_4;
    case 18: return widen_1_to_8;
    case 28: return widen_2_to_8;
    case 48: return widen_4_to_8;
    case 88: return widen_8_to_8;
    }
    return NULL;
}

/* --- lines that are turned round -------------------------------------------------------------- */

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLE
#endif
#endif

/* The first pixels of three bytes of a line, in reverse order; how many they were. Some at once, as
 * one load and one store, which writes a byte too many: the next write, or the last, puts it right.
 * A byte is also read behind `from`. */
FOR_EACH_PROCESSOR
static size_t reverse_pixels(const unsigned char *last, unsigned char *to, size_t count)
{
    size_t k = 0;
#ifdef HAS_SHUFFLE
    typedef unsigned char Five __attribute__((vector_size(16)));
    for (; k + 5 < count; k += 5) {
        Five pixels;
        memcpy(&pixels, last - (k + 4) * 3, sizeof pixels);
        pixels = __builtin_shufflevector(pixels, pixels, 12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0,
                                         1, 2, 15);
        memcpy(to + k * 3, &pixels, sizeof pixels);
    }
#endif
    for (; k + 1 < count; k++)
        memcpy(to + k * 3, last - k * 3, 4);
    return k;
}

/* `count` items of `size` bytes in reverse order. `from` has a byte behind its last. */
static void reverse(const unsigned char *from, unsigned char *to, size_t count, size_t size)
{
    const unsigned char *last = from + (count - 1) * size;
    for (size_t k = size == 3 ? reverse_pixels(last, to, count) : 0; k < count; k++)
        memcpy(to + k * size, last - k * size, size);
}

static void mirror(unsigned char *lines, size_t num_lines, size_t count, size_t size,
                   unsigned char *line)
{
    for (size_t i = 0; i < num_lines; i++, lines += count * size) {
        memcpy(line, lines, count * size);
        reverse(line, lines, count, size);
    }
}

/* --- rows of a table -------------------------------------------------------------------------- */

/* The last of the bounds, which ascend from 0, that is not above a row. */
static int64_t find_part(const int64_t *bounds, Py_ssize_t count, int64_t row)
{
    const int64_t *first = bounds;
    while (count > 1) { /* without a jump that depends on the row: those are guessed wrong */
        Py_ssize_t half = count / 2;
        first = first[half] <= row ? first + half : first;
        count -= half;
    }
    return first - bounds;
}

static void look_up(const Row *rows, Py_ssize_t count, unsigned char *out, const int64_t *numbers,
                    const int64_t *bounds, Py_ssize_t num_bounds, int64_t *parts)
{
    copy(rows, count, out);
    for (Py_ssize_t i = 0; i < count; i++)
        parts[i] = find_part(bounds, num_bounds, numbers[i]);
}

/* --- Python ----------------------------------------------------------------------------------- */

/* What a call was given, held until release(): which memory each row lies in, where it starts there,
 * how many bytes it has; that memory, of which only what some row lies in is asked for; and what
 * becomes of all rows. */
typedef struct {
    Py_ssize_t count, num_memory, num_held;
    Py_buffer which, starts, sizes, out;
    Py_buffer *held;
    int32_t *place; /* (num_memory,): where it is in `held`, counted from 1 */
    Row *rows;
} Call;

static void release(Call *call)
{
    for (Py_ssize_t i = 0; i < call->num_held; i++)
        PyBuffer_Release(&call->held[i]);
    PyMem_Free(call->held);
    PyMem_Free(call->place);
    PyMem_Free(call->rows);
    PyBuffer_Release(&call->which);
    PyBuffer_Release(&call->starts);
    PyBuffer_Release(&call->sizes);
    PyBuffer_Release(&call->out);
}

static int refuse(const char *why)
{
    PyErr_SetString(PyExc_ValueError, why);
    return -1;
}

static int refuse_outside(void)
{
    return refuse("gather: a row is outside its memory, or out has not their size");
}

static int allocate(Call *call, PyObject *memory)
{
    if ((call->num_memory = PyObject_Size(memory)) < 0)
        return -1;
    call->count = call->sizes.len / 8;
    if (call->which.len != call->count * 8 || call->starts.len != call->count * 8 ||
        call->sizes.len % 8 || call->count > INT32_MAX)
        return refuse("gather: arguments of different lengths");
    Py_ssize_t most = call->count < call->num_memory ? call->count : call->num_memory;
    call->held = PyMem_Calloc(most + 1, sizeof *call->held);
    call->place = PyMem_Calloc(call->num_memory + 1, sizeof *call->place);
    call->rows = PyMem_Malloc((call->count + 1) * sizeof *call->rows);
    return call->held && call->place && call->rows ? 0 : (PyErr_NoMemory(), -1);
}

/* The bytes of one memory, held from now on; NULL with an exception set. */
static const Py_buffer *hold(Call *call, PyObject *memory, int64_t which)
{
    if (!call->place[which]) {
        PyObject *number = PyLong_FromLongLong(which);
        PyObject *value = number ? PyObject_GetItem(memory, number) : NULL;
        int failed = !value || PyObject_GetBuffer(value, &call->held[call->num_held], PyBUF_SIMPLE);
        Py_XDECREF(number);
        Py_XDECREF(value);
        if (failed)
            return NULL;
        call->place[which] = (int32_t)++call->num_held;
    }
    return &call->held[call->place[which] - 1];
}

/* Where each row lies. All are inside their memory, and `needed` bytes together, in whole steps. */
static int find_rows(Call *call, PyObject *memory, size_t needed, size_t step)
{
    const int64_t *which = call->which.buf, *starts = call->starts.buf, *sizes = call->sizes.buf;
    for (Py_ssize_t i = 0; i < call->count; i++) {
        if (which[i] < 0 || which[i] >= call->num_memory)
            return refuse_outside();
        const Py_buffer *held = hold(call, memory, which[i]);
        if (!held)
            return -1;
        if (starts[i] < 0 || sizes[i] < 0 || sizes[i] > held->len ||
            starts[i] > held->len - sizes[i] || (size_t)sizes[i] > needed || sizes[i] % step)
            return refuse_outside();
        needed -= sizes[i];
        call->rows[i] = (Row){(const unsigned char *)held->buf + starts[i], sizes[i]};
    }
    return needed ? refuse_outside() : 0;
}

/* Everything but the copying: `from` bytes of a row become `to` bytes of `out`. */
static int prepare(Call *call, PyObject *memory, Py_ssize_t from, Py_ssize_t to)
{
    if (allocate(call, memory))
        return -1;
    if (call->out.len % to)
        return refuse_outside();
    return find_rows(call, memory, (size_t)(call->out.len / to * from), from);
}

/* Without the GIL, if that is worth it: who lets go of it may wait for as long as other threads then
 * have it, and be woken, which takes longer than copying a few hundred KB. */
static PyThreadState *let_go(const Call *call)
{
    return call->out.len < LEAST_WITHOUT_GIL ? NULL : PyEval_SaveThread();
}

static void take_back(PyThreadState *released)
{
    if (released)
        PyEval_RestoreThread(released);
}

/* copy(memory: by number, bytes-like, which (B,), starts (B,), sizes (B,) int64, out, from = 1,
 *      to = 1): items of `from` bytes become items of `to`. */
static PyObject *py_copy(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *memory;
    Call call = {0};
    Py_ssize_t from = 1, to = 1;
    if (!PyArg_ParseTuple(args, "Oy*y*y*w*|nn", &memory, &call.which, &call.starts, &call.sizes,
                          &call.out, &from, &to))
        return NULL;
    Gather gather = choose_gather(from, to);
    int failed = 1;
    if (!gather)
        PyErr_SetString(PyExc_ValueError, "gather: items of these sizes are not widened");
    else if (!(failed = prepare(&call, memory, from, to))) {
        PyThreadState *released = let_go(&call);
        gather(call.rows, call.count, call.out.buf);
        take_back(released);
    }
    release(&call);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* look_up(table of rows of `width` bytes, numbers (B,) int64, bounds (S,) int64, out of B rows,
 *         parts (B,) int64 out, width). Returns whether all rows are there; else nothing is done. */
static PyObject *py_look_up(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer table, numbers, bounds, out, parts;
    Py_ssize_t width;
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*n", &table, &numbers, &bounds, &out, &parts, &width))
        return NULL;
    Py_ssize_t count = numbers.len / 8, are_there = 1;
    const int64_t *number = numbers.buf;
    Row *rows = PyMem_Malloc((count + 1) * sizeof *rows);
    if (!rows)
        PyErr_NoMemory();
    else if (width < 1 || out.len / width != count || parts.len != count * 8 || bounds.len < 8)
        refuse("look_up: arguments of different lengths");
    else {
        for (Py_ssize_t i = 0; i < count && are_there; i++) {
            are_there = number[i] >= 0 && number[i] < table.len / width;
            if (are_there)
                rows[i] = (Row){(const unsigned char *)table.buf + number[i] * width, width};
        }
        if (are_there)
            look_up(rows, count, out.buf, number, bounds.buf, bounds.len / 8, parts.buf);
    }
    PyMem_Free(rows);
    PyBuffer_Release(&table);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&bounds);
    PyBuffer_Release(&out);
    PyBuffer_Release(&parts);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(are_there);
}

/* split(starts (B,), sizes (B,), bounds (P + 1,), shifts (P,), step, numbers (B,) out, firsts (B,)
 *       out, num_bytes (B,) out), all int64: for each range of items the part it is in, and its
 * first byte there and how many. Returns whether none goes beyond its part. */
static PyObject *py_split(PyObject *module, PyObject *args)
{
    (void)module;
    enum { STARTS, SIZES, BOUNDS, SHIFTS, NUMBERS, FIRSTS, NUM_BYTES, ALL };
    Py_buffer views[ALL];
    int64_t *v[ALL], step, are_whole = 1;
    if (!PyArg_ParseTuple(args, "y*y*y*y*Lw*w*w*", &views[STARTS], &views[SIZES], &views[BOUNDS],
                          &views[SHIFTS], &step, &views[NUMBERS], &views[FIRSTS],
                          &views[NUM_BYTES]))
        return NULL;
    Py_ssize_t length = views[STARTS].len, num_parts = views[BOUNDS].len / 8 - 1, are_alike = 1;
    for (int i = 0; i < ALL; i++) {
        v[i] = views[i].buf;
        are_alike &= i == BOUNDS || i == SHIFTS || views[i].len == length;
    }
    if (!are_alike || num_parts < 1 || views[SHIFTS].len != num_parts * 8)
        refuse("split: arguments of different lengths");
    else
        for (Py_ssize_t i = 0; i < length / 8; i++) {
            int64_t part = find_part(v[BOUNDS], num_parts, v[STARTS][i]);
            are_whole &= v[STARTS][i] + v[SIZES][i] <= v[BOUNDS][part + 1];
            v[NUMBERS][i] = part;
            v[FIRSTS][i] = v[STARTS][i] * step + v[SHIFTS][part];
            v[NUM_BYTES][i] = v[SIZES][i] * step;
        }
    for (int i = 0; i < ALL; i++)
        PyBuffer_Release(&views[i]);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(are_whole);
}

/* mirror(pictures, flips (B,) bool, lines of a picture, items of a line, bytes of an item): in place,
 * the lines of some pictures with their items in reverse order. */
static PyObject *py_mirror(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer pictures, flips;
    Py_ssize_t lines, count, size;
    if (!PyArg_ParseTuple(args, "w*y*nnn", &pictures, &flips, &lines, &count, &size))
        return NULL;
    unsigned char *line = NULL;
    if (lines < 1 || count < 1 || size < 1 || !flips.len ||
        pictures.len / flips.len / lines / count != size ||
        flips.len * lines * count * size != pictures.len)
        refuse("mirror: arguments of different lengths");
    else if (!(line = PyMem_Malloc(count * size + 1)))
        PyErr_NoMemory();
    else {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < flips.len; i++)
            if (((const char *)flips.buf)[i])
                mirror((unsigned char *)pictures.buf + i * lines * count * size, lines, count, size,
                       line);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(line);
    PyBuffer_Release(&pictures);
    PyBuffer_Release(&flips);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"copy", py_copy, METH_VARARGS, NULL},
    {"look_up", py_look_up, METH_VARARGS, NULL},
    {"mirror", py_mirror, METH_VARARGS, NULL},
    {"split", py_split, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_gather", .m_methods = methods,
};

PyMODINIT_FUNC PyInit__gather(void) { return PyModuleDef_Init(&definition); }
