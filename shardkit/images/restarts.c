/* The coefficients of a JPEG, written anew: with restart markers, or as they were before.
 *
 * recode() reads the quantised coefficients of a picture and writes the very same ones, so no pixel
 * changes. It does so in one of three ways:
 *
 * 1. with the best Huffman tables and an interval between restart markers: what restarts.py stores;
 * 2. with the tables and the interval that another file's header defines: the original's;
 * 3. as a progressive JPEG, by a script of scans: the original, if that was one.
 *
 * It makes a whole JPEG, of which restarts.py takes the part that it wants.
 *
 * Everything here reads hostile bytes. libjpeg says so through error_exit, which must not return:
 * it jumps back to attempt(). What is allocated is libjpeg's own but for the output, and free_job
 * frees both, whatever happened.
 */
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2000000
#error "libjpeg-turbo 2.0 or newer is needed, as for the kernel"
#endif

/* The numbers are those of restarts.py. UNLIKE: it reads well, and cannot be written the same. */
enum Status { OK = 0, UNLIKE = 1, BROKEN = 2, TOO_LARGE = 3, NO_MEMORY = 4 };

/* Real progressive files have about ten scans; each is a pass over the whole picture, however few
 * its bytes are. */
enum { MAX_SCANS = 100 };

/* No encoder of 8-bit pictures makes more than 2,047. The fast Huffman encoders of libjpeg-turbo
 * trust that, and damaged files hold up to 65,535. Differences of these still have a code's place
 * in their tables and room in their buffers. */
enum { MAX_COEFFICIENT = 8191 };

typedef struct {
    const unsigned char *data;
    size_t size;
} Bytes;

/* A scan of a progressive JPEG, as restarts.py stores it. */
typedef struct {
    unsigned char components; /* bit i: the frame's component i is in it */
    unsigned char first, last; /* coefficients, in zigzag order */
    unsigned char bits; /* Ah and Al, as in its header */
} Scan;

typedef struct {
    Bytes jpeg;
    Bytes header; /* up to the scan; its tables and its interval are taken, if it is not empty */
    Bytes script; /* Scans, if it is not empty */
    unsigned int interval; /* MCUs between restart markers, where there is no header */
    double max_pixels;
    unsigned char *out; /* free_job frees it */
    size_t out_size, room;
    /* What follows is the libraries' and not the caller's. */
    struct jpeg_decompress_struct source, tables;
    struct jpeg_compress_struct made;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr reading[2];
    struct jpeg_destination_mgr writing;
    struct jpeg_progress_mgr progress;
    int status;
    jmp_buf escape;
} Job;

/* --- libjpeg, with errors that come back ------------------------------------------------------ */

static _Noreturn void fail(j_common_ptr jpeg, enum Status status)
{
    Job *job = jpeg->client_data;
    job->status = status;
    longjmp(job->escape, 1);
}

static void on_error(j_common_ptr jpeg)
{
    if (jpeg->err->msg_code == JERR_OUT_OF_MEMORY)
        fail(jpeg, NO_MEMORY);
    fail(jpeg, jpeg->is_decompressor ? BROKEN : UNLIKE);
}

/* Warnings (level < 0) are what libjpeg went on from. Only where it skipped or ignored bytes, so
 * do we: whether they come back is for the caller to see. */
static void on_message(j_common_ptr jpeg, int level)
{
    int code = jpeg->err->msg_code;
    if (level >= 0 || code == JWRN_EXTRANEOUS_DATA || code == JWRN_NOT_SEQUENTIAL ||
        code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR)
        return;
    fail(jpeg, jpeg->is_decompressor ? BROKEN : UNLIKE);
}

static void on_scan(j_common_ptr jpeg)
{
    if (jpeg->is_decompressor && ((j_decompress_ptr)jpeg)->input_scan_number > MAX_SCANS)
        fail(jpeg, TOO_LARGE);
}

static void nothing(j_decompress_ptr jpeg) { (void)jpeg; }

/* Past the data there is an end marker: libjpeg warns if it really lacks something. */
static boolean fill(j_decompress_ptr jpeg)
{
    static const JOCTET end[2] = {0xFF, JPEG_EOI};
    jpeg->src->next_input_byte = end;
    jpeg->src->bytes_in_buffer = sizeof end;
    return TRUE;
}

static void skip(j_decompress_ptr jpeg, long count)
{
    size_t left = jpeg->src->bytes_in_buffer;
    size_t step = count <= 0 ? 0 : (size_t)count < left ? (size_t)count : left;
    jpeg->src->next_input_byte += step;
    jpeg->src->bytes_in_buffer -= step;
}

static void open_reader(Job *job, j_decompress_ptr jpeg, struct jpeg_source_mgr *source, Bytes from)
{
    jpeg->err = &job->errors;
    jpeg->client_data = job;
    jpeg_create_decompress(jpeg);
    *source = (struct jpeg_source_mgr){
        .next_input_byte = from.data,
        .bytes_in_buffer = from.size,
        .init_source = nothing,
        .fill_input_buffer = fill,
        .skip_input_data = skip,
        .resync_to_restart = jpeg_resync_to_restart,
        .term_source = nothing,
    };
    jpeg->src = source;
    jpeg->progress = &job->progress;
}

static void grow(j_compress_ptr jpeg, size_t used)
{
    Job *job = jpeg->client_data;
    size_t room = job->room ? 2 * job->room : job->jpeg.size + job->jpeg.size / 4 + 4096;
    unsigned char *out = realloc(job->out, room);
    if (!out)
        fail((j_common_ptr)jpeg, NO_MEMORY);
    job->out = out;
    job->room = room;
    jpeg->dest->next_output_byte = out + used;
    jpeg->dest->free_in_buffer = room - used;
}

static void start_output(j_compress_ptr jpeg) { grow(jpeg, 0); }

static boolean grow_output(j_compress_ptr jpeg)
{
    grow(jpeg, ((Job *)jpeg->client_data)->room); /* libjpeg asks only when it is full to the end */
    return TRUE;
}

static void end_output(j_compress_ptr jpeg)
{
    Job *job = jpeg->client_data;
    job->out_size = job->room - jpeg->dest->free_in_buffer;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Where bits of a coefficient never came, decoders guess it, but only in a progressive file: the
 * same picture without the gap would be decoded to other pixels. */
static void check_complete(j_decompress_ptr jpeg)
{
    for (int i = 0; i < jpeg->num_components; i++)
        for (int k = 0; k < DCTSIZE2; k++)
            if (jpeg->coef_bits[i][k] != 0)
                fail((j_common_ptr)jpeg, UNLIKE);
}

static JDIMENSION round_up(JDIMENSION count, int step) { return (count + step - 1) / step * step; }

/* All blocks of whole MCUs: those beyond the picture's edge are written, too. */
static void check_coefficients(j_decompress_ptr jpeg, jvirt_barray_ptr *coefficients)
{
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *component = &jpeg->comp_info[i];
        JDIMENSION height = round_up(component->height_in_blocks, component->v_samp_factor);
        size_t count = (size_t)DCTSIZE2 * round_up(component->width_in_blocks,
                                                   component->h_samp_factor);
        for (JDIMENSION y = 0; y < height; y++) {
            JBLOCKARRAY rows = jpeg->mem->access_virt_barray((j_common_ptr)jpeg, coefficients[i], y,
                                                             1, FALSE);
            const JCOEF *row = rows[0][0];
            int is_beyond = 0;
            for (size_t k = 0; k < count; k++)
                is_beyond |= row[k] > MAX_COEFFICIENT || row[k] < -MAX_COEFFICIENT;
            if (is_beyond)
                fail((j_common_ptr)jpeg, BROKEN);
        }
    }
}

static jvirt_barray_ptr *read_coefficients(Job *job)
{
    j_decompress_ptr jpeg = &job->source;
    open_reader(job, jpeg, &job->reading[0], job->jpeg);
    jpeg_read_header(jpeg, TRUE);
    if ((double)jpeg->image_width * jpeg->image_height > job->max_pixels)
        fail((j_common_ptr)jpeg, TOO_LARGE);
    jvirt_barray_ptr *coefficients = jpeg_read_coefficients(jpeg);
    if (jpeg->progressive_mode)
        check_complete(jpeg);
    check_coefficients(jpeg, coefficients);
    return coefficients;
}

/* --- writing ---------------------------------------------------------------------------------- */

static void copy_tables(j_compress_ptr jpeg, JHUFF_TBL **to, JHUFF_TBL *const *from)
{
    for (int i = 0; i < NUM_HUFF_TBLS; i++) {
        if (!from[i]) /* as when it is decoded, the standard's own table is meant */
            continue;
        if (!to[i])
            to[i] = jpeg_alloc_huff_table((j_common_ptr)jpeg);
        *to[i] = *from[i];
        to[i]->sent_table = FALSE;
    }
}

static void take_tables(Job *job)
{
    open_reader(job, &job->tables, &job->reading[1], job->header);
    jpeg_read_header(&job->tables, TRUE);
    copy_tables(&job->made, job->made.dc_huff_tbl_ptrs, job->tables.dc_huff_tbl_ptrs);
    copy_tables(&job->made, job->made.ac_huff_tbl_ptrs, job->tables.ac_huff_tbl_ptrs);
    job->made.restart_interval = job->tables.restart_interval;
}

/* Blocks beyond the picture's edge, which fill its last MCUs, differ from encoder to encoder, and
 * libjpeg writes its own. As a picture of whole MCUs it has none, and they are written as they were
 * read. (Its frame header says that size; it is not what is wanted here.) */
static void keep_padding(j_compress_ptr jpeg)
{
    int across = 1, down = 1;
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *component = &jpeg->comp_info[i];
        across = component->h_samp_factor > across ? component->h_samp_factor : across;
        down = component->v_samp_factor > down ? component->v_samp_factor : down;
    }
    jpeg->image_width = round_up(jpeg->image_width, across * DCTSIZE);
    jpeg->image_height = round_up(jpeg->image_height, down * DCTSIZE);
}

static void take_script(Job *job)
{
    j_compress_ptr jpeg = &job->made;
    const Scan *scans = (const Scan *)job->script.data;
    size_t count = job->script.size / sizeof *scans;
    if (count > MAX_SCANS)
        fail((j_common_ptr)jpeg, TOO_LARGE);
    jpeg_scan_info *script = jpeg->mem->alloc_small((j_common_ptr)jpeg, JPOOL_IMAGE,
                                                    count * sizeof *script);
    memset(script, 0, count * sizeof *script);
    for (size_t i = 0; i < count; i++) {
        for (int c = 0; c < MAX_COMPS_IN_SCAN; c++)
            if (scans[i].components >> c & 1)
                script[i].component_index[script[i].comps_in_scan++] = c;
        script[i].Ss = scans[i].first;
        script[i].Se = scans[i].last;
        script[i].Ah = scans[i].bits >> 4;
        script[i].Al = scans[i].bits & 15;
    }
    jpeg->scan_info = script;
    jpeg->num_scans = (int)count; /* libjpeg checks all of it before it writes */
}

static void write_coefficients(Job *job, jvirt_barray_ptr *coefficients)
{
    j_compress_ptr jpeg = &job->made;
    jpeg->err = &job->errors;
    jpeg->client_data = job;
    jpeg_create_compress(jpeg);
    job->writing = (struct jpeg_destination_mgr){
        .init_destination = start_output,
        .empty_output_buffer = grow_output,
        .term_destination = end_output,
    };
    jpeg->dest = &job->writing;
    jpeg_copy_critical_parameters(&job->source, jpeg);
    jpeg->write_JFIF_header = FALSE;
    jpeg->write_Adobe_marker = FALSE;
    if (!job->source.progressive_mode) /* the scan's header stays as it is, so it names these */
        for (int i = 0; i < jpeg->num_components; i++) {
            jpeg->comp_info[i].dc_tbl_no = job->source.comp_info[i].dc_tbl_no;
            jpeg->comp_info[i].ac_tbl_no = job->source.comp_info[i].ac_tbl_no;
        }
    jpeg->optimize_coding = job->header.size == 0;
    jpeg->restart_interval = job->interval;
    if (job->header.size)
        take_tables(job);
    if (job->script.size)
        take_script(job);
    else if (jpeg->num_components > 1) /* where there is one, an MCU is a block, whatever it says */
        keep_padding(jpeg);
    jpeg_write_coefficients(jpeg, coefficients);
    jpeg_finish_compress(jpeg);
}

static void recode(Job *job)
{
    jpeg_std_error(&job->errors);
    job->errors.error_exit = on_error;
    job->errors.emit_message = on_message;
    job->progress = (struct jpeg_progress_mgr){.progress_monitor = on_scan};
    write_coefficients(job, read_coefficients(job));
}

/* The one place errors come back to. It has no variables of its own, so none is lost. */
static int attempt(Job *job)
{
    if (setjmp(job->escape))
        return job->status;
    recode(job);
    return OK;
}

/* A job's first part is the caller's, who must call free_job afterwards. */
static int run(Job *job)
{
    memset(&job->source, 0, offsetof(Job, escape) - offsetof(Job, source));
    job->out = NULL;
    job->out_size = job->room = 0;
    return attempt(job);
}

static void free_job(Job *job)
{
    jpeg_destroy_decompress(&job->source);
    jpeg_destroy_decompress(&job->tables);
    jpeg_destroy_compress(&job->made);
    free(job->out);
}

#ifndef SHARDKIT_WITHOUT_PYTHON
/* --- Python ----------------------------------------------------------------------------------- */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *result(const Job *job, int status)
{
    if (status == NO_MEMORY)
        return PyErr_NoMemory();
    size_t size = status == OK ? job->out_size : 0;
    return Py_BuildValue("iy#", status, (const char *)job->out, (Py_ssize_t)size);
}

/* recode(jpeg, header, script, interval, max_pixels) -> (status, JPEG) */
static PyObject *py_recode(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer jpeg, header, script;
    unsigned int interval;
    double max_pixels;
    if (!PyArg_ParseTuple(args, "y*y*y*Id", &jpeg, &header, &script, &interval, &max_pixels))
        return NULL;
    Job job = {
        .jpeg = {jpeg.buf, jpeg.len},
        .header = {header.buf, header.len},
        .script = {script.buf, script.len},
        .interval = interval,
        .max_pixels = max_pixels,
    };
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = run(&job);
    Py_END_ALLOW_THREADS
    PyObject *made = result(&job, status);
    free_job(&job);
    PyBuffer_Release(&jpeg);
    PyBuffer_Release(&header);
    PyBuffer_Release(&script);
    return made;
}

static PyMethodDef methods[] = {
    {"recode", py_recode, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_restarts", .m_methods = methods,
};

PyMODINIT_FUNC PyInit__restarts(void) { return PyModuleDef_Init(&definition); }
#endif
