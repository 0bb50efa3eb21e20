/* The keyed shuffle of permutation.py, which says what it computes and after whom: each position
 * goes through all rounds in registers, where NumPy makes a pass over memory for each operation.
 */
#include <stdint.h>
#include <string.h>

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* 70 us of work. For less a thread would sooner wait for the GIL again than gain by letting go. */
enum { ROUNDS = 8, LANES = 8, LEAST_WITHOUT_GIL = 1 << 13 };

/* splitmix64's finaliser. */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/* Several values side by side: each round waits for the one before, and the next value need not. */
static inline void encrypt(uint64_t *values, uint64_t side, const uint64_t *salts)
{
    uint64_t left[LANES], right[LANES];
    for (int k = 0; k < LANES; k++) {
        left[k] = values[k] / side;
        right[k] = values[k] % side;
    }
    for (int i = 0; i < ROUNDS; i++)
        for (int k = 0; k < LANES; k++) {
            uint64_t sum = left[k] + ((mix(right[k] + salts[i]) >> 32) * side >> 32);
            left[k] = right[k];
            right[k] = sum < side ? sum : sum - side;
        }
    for (int k = 0; k < LANES; k++)
        values[k] = left[k] * side + right[k];
}

/* Whether each position was below size; where one is not, nothing can be said of its row. */
static int permute(const uint64_t *positions, Py_ssize_t count, uint64_t size, uint64_t side,
                   const uint64_t *salts, uint64_t *out)
{
    int are_inside = 1;
    for (Py_ssize_t i = 0; i < count; i += LANES) {
        Py_ssize_t lanes = count - i < LANES ? count - i : LANES;
        uint64_t values[LANES] = {0};
        memcpy(values, positions + i, lanes * 8);
        for (int k = 0; k < LANES; k++)
            are_inside &= values[k] < size;
        encrypt(values, side, salts);
        for (int k = 0; k < lanes; k++) {
            while (values[k] >= size && are_inside) {
                uint64_t again[LANES] = {values[k]};
                encrypt(again, side, salts);
                values[k] = again[0];
            }
            out[i + k] = values[k];
        }
    }
    return are_inside;
}

/* permute(positions (B,) int64, size, side, salts (8,) uint64, rows (B,) int64 out). */
static PyObject *py_permute(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer positions, salts, out;
    unsigned long long size, side;
    if (!PyArg_ParseTuple(args, "y*KKy*w*", &positions, &size, &side, &salts, &out))
        return NULL;
    Py_ssize_t count = positions.len / 8;
    if (out.len != positions.len || salts.len != ROUNDS * 8)
        PyErr_SetString(PyExc_ValueError, "permute: arguments of different lengths");
    else if (side < 1 || side >> 32 || side * side < size)
        PyErr_SetString(PyExc_ValueError, "permute: the square of side must hold size");
    else {
        PyThreadState *released = count < LEAST_WITHOUT_GIL ? NULL : PyEval_SaveThread();
        int are_inside = permute(positions.buf, count, size, side, salts.buf, out.buf);
        if (released)
            PyEval_RestoreThread(released);
        if (!are_inside)
            PyErr_SetString(PyExc_ValueError, "permute: a position is not below size");
    }
    PyBuffer_Release(&positions);
    PyBuffer_Release(&salts);
    PyBuffer_Release(&out);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"permute", py_permute, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_permute", .m_methods = methods,
};

PyMODINIT_FUNC PyInit__permute(void) { return PyModuleDef_Init(&definition); }
