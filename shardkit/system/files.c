/* Looking at and reading many small files of one folder, without a Python call for each: 2.4 us of
 * Python a file for a stat and 5 us for open, read and close come to 0.9 and 2.3 us.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

enum { STAT_COLUMNS = 5 };

static int64_t nanoseconds(struct timespec at) { return at.tv_sec * 1000000000LL + at.tv_nsec; }

/* stat_names(fd, names, rows): names end in a NUL each; rows is (N, 5) int64: mode, bytes, mtime and
 * ctime in ns, inode; a mode of 0 for what cannot be looked at. Links are followed. */
static PyObject *py_stat_names(PyObject *module, PyObject *args)
{
    (void)module;
    int fd;
    Py_buffer names, out;
    if (!PyArg_ParseTuple(args, "iy*w*", &fd, &names, &out))
        return NULL;
    const char *name = names.buf, *end = name + names.len;
    int64_t *row = out.buf, *last = row + out.len / 8;
    Py_BEGIN_ALLOW_THREADS;
    for (; name < end && row + STAT_COLUMNS <= last; row += STAT_COLUMNS) {
        struct stat status;
        memset(row, 0, STAT_COLUMNS * 8);
        if (!fstatat(fd, name, &status, 0)) {
            row[0] = status.st_mode;
            row[1] = status.st_size;
            row[2] = nanoseconds(status.st_mtim);
            row[3] = nanoseconds(status.st_ctim);
            row[4] = (int64_t)status.st_ino;
        }
        name += strnlen(name, end - name) + 1;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&names);
    PyBuffer_Release(&out);
    Py_RETURN_NONE;
}

/* Return 1 if a regular file has this many bytes, which are then in data. */
static int read_whole(int folder, const char *name, char *data, int64_t size)
{
    /* Without O_NONBLOCK, a FIFO put in the place of a file would block for ever. */
    int fd = openat(folder, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    char more; /* a file that grew fills this, too */
    struct iovec parts[] = {{data, size}, {&more, 1}};
    ssize_t got = readv(fd, parts, 2);
    close(fd);
    return got == size;
}

/* read_names(fd, names, sizes (N,) int64, most) -> list of bytes, None for each file that is empty,
 * has `most` bytes or more, or is not as long as said, or no file: Python finds out what it is. */
static PyObject *py_read_names(PyObject *module, PyObject *args)
{
    (void)module;
    int fd;
    long long most;
    Py_buffer names, sizes;
    if (!PyArg_ParseTuple(args, "iy*y*L", &fd, &names, &sizes, &most))
        return NULL;
    Py_ssize_t count = sizes.len / 8;
    const int64_t *size = sizes.buf;
    const char *name = names.buf, *end = name + names.len;
    char **data = PyMem_Calloc(count + 1, sizeof *data);
    PyObject *values = PyList_New(count);
    int is_made = data && values;
    for (Py_ssize_t i = 0; is_made && i < count; i++) {
        int is_wanted = 0 < size[i] && size[i] < most;
        PyObject *value = is_wanted ? PyBytes_FromStringAndSize(NULL, size[i]) : Py_NewRef(Py_None);
        is_made = value && !PyList_SetItem(values, i, value);
        data[i] = is_made && is_wanted ? PyBytes_AsString(value) : NULL;
    }
    if (is_made) {
        Py_BEGIN_ALLOW_THREADS;
        for (Py_ssize_t i = 0; i < count && name < end; i++) {
            if (data[i] && read_whole(fd, name, data[i], size[i]))
                data[i] = NULL; /* done */
            name += strnlen(name, end - name) + 1;
        }
        Py_END_ALLOW_THREADS;
        for (Py_ssize_t i = 0; i < count; i++)
            if (data[i])
                PyList_SetItem(values, i, Py_NewRef(Py_None));
    } else if (!data)
        PyErr_NoMemory();
    PyMem_Free(data);
    PyBuffer_Release(&names);
    PyBuffer_Release(&sizes);
    if (!is_made)
        Py_CLEAR(values);
    return values;
}

static PyMethodDef methods[] = {
    {"stat_names", py_stat_names, METH_VARARGS, NULL},
    {"read_names", py_read_names, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_files", .m_methods = methods,
};

PyMODINIT_FUNC PyInit__files(void) { return PyModuleDef_Init(&definition); }
