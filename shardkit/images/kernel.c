/* JPEGs to the pixels of a training batch: decoded where and as large as needed, resized, flipped.
 *
 * For each slot of a batch, on threads of its own and without Python:
 *
 * 1. the smallest DCT scale (1/8, 1/4, 1/2 or 1) at which the crop still has the target's size;
 * 2. only the columns (jpeg_crop_scanline) and rows (jpeg_skip_scanlines) that the crop needs; what
 *    lies below the last row is not even read, and of what lies beside and above it only what has
 *    to be, see scan.h;
 * 3. a triangle filter as wide as the shrinking asks for, Pillow's antialiased BILINEAR with a box
 *    of sub-pixel accuracy, rows first, straight into the slot. A flip only reorders its weights.
 *
 * The filter works in 32-bit floats without fused multiply-add: one rounding at the end, where
 * Pillow rounds twice, and the same pixels on every processor.
 *
 * Everything here reads hostile bytes. libjpeg says so through error_exit, which must not return:
 * it jumps back to attempt(). All memory of a picture is in a list of the thread's decoder, or
 * libjpeg's own, so whatever happened, decode_once() or jpeg_destroy_decompress() frees it.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

#include "rewind.h"
#include "scan.h"
#include "tables.h"

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2000000
#error "libjpeg-turbo 2.0 or newer is needed: others cannot leave out rows and columns safely"
#endif

enum Status { OK = 0, ELSEWHERE = 1, BROKEN = 2, TOO_LARGE = 3, BAD_BOX = 4, AGAIN = 5 };

/* Real progressive files have about ten; each is a pass over the whole picture, however few its
 * bytes are. */
enum { MAX_SCANS = 100, MAX_THREADS = 256 };

/* Columns beside the crop that are decoded for its sake: at its border the upsampling of colour
 * would take the outermost sample, of two columns, for its missing neighbour. */
enum { MARGIN = 2 };

/* Of pictures that are no wider (pixels), all columns are decoded: so libjpeg can be set back. */
enum { NARROW = 64 };

/* By how many pixels a box may leave the picture: left + width is rarely exact. */
#define ROUNDING 1e-6

/* glibc picks the function for the processor it runs on, by code that would run before a sanitizer
 * is ready for it. No other compiler flag is needed. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

typedef struct {
    const unsigned char *data;
    size_t size;
    const double *box; /* x, y, width, height in pixels of the full picture */
    int is_flipped;
    int by_libjpeg; /* the scan, too, and not by scan.h: something in it is odd */
    unsigned char *out; /* height * width * 3 */
} Slot;

typedef struct {
    Slot *slots;
    int32_t *status; /* (count,) */
    int count, height, width;
    int is_cropped_first; /* pixels outside the box do not count, not even within the filter's reach */
    int by_libjpeg; /* every scan: to compare with */
    double max_pixels;
    atomic_int next;
} Batch;

/* --- libjpeg, with errors that come back ------------------------------------------------------ */

/* Memory of ours, for one picture: libjpeg's is of no pool that ends with it. */
typedef struct Room {
    struct Room *next;
    _Alignas(max_align_t) unsigned char bytes[];
} Room;

/* A thread's, for all of its pictures. */
typedef struct {
    struct jpeg_decompress_struct jpeg; /* first: libjpeg's pointers to it are pointers to this */
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    Scan scan;
    Tables known;
    Room *rooms;
    void *(*alloc_small)(j_common_ptr jpeg, int pool, size_t size); /* libjpeg's own */
    void (*realize_virt_arrays)(j_common_ptr jpeg);
    void (*start_pass)(j_decompress_ptr jpeg);
    int status;
    int is_exhausted; /* the data ended before libjpeg had enough */
    jmp_buf escape; /* from here on nothing has to begin as 0 */
    Small small;
    Kept kept;
} Decoder;

static _Noreturn void fail(j_common_ptr jpeg, enum Status status)
{
    Decoder *decoder = (Decoder *)jpeg;
    decoder->status = status;
    longjmp(decoder->escape, 1);
}

static void on_error(j_common_ptr jpeg)
{
    switch (jpeg->err->msg_code) {
    case JERR_NO_SOI:
    case JERR_SOF_UNSUPPORTED:
    case JERR_BAD_PRECISION:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_ARITH_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_NOTIMPL:
    case JERR_OUT_OF_MEMORY:
        fail(jpeg, ELSEWHERE);
    default:
        fail(jpeg, BROKEN);
    }
}

/* Warnings (level < 0) are what libjpeg went on from. Where it only skipped or ignored bytes, so do
 * we. Where it made up pixels, it depends: data that end are a truncated file; of other damage the
 * caller's own decoder shall judge, so that what is refused never depends on this kernel. */
static void on_message(j_common_ptr jpeg, int level)
{
    int code = jpeg->err->msg_code;
    if (level >= 0 || code == JWRN_EXTRANEOUS_DATA || code == JWRN_NOT_SEQUENTIAL ||
        code == JWRN_ADOBE_XFORM || code == JWRN_JFIF_MAJOR)
        return;
    fail(jpeg, ((Decoder *)jpeg)->is_exhausted ? BROKEN : ELSEWHERE);
}

static void on_scan(j_common_ptr jpeg)
{
    if (((j_decompress_ptr)jpeg)->input_scan_number > MAX_SCANS)
        fail(jpeg, TOO_LARGE);
}

static void nothing(j_decompress_ptr jpeg) { (void)jpeg; }

/* libjpeg reads ahead of what it needs: past the data it finds an end marker, and warns only if it
 * really lacks something. */
static boolean fill(j_decompress_ptr jpeg)
{
    static const JOCTET end[2] = {0xFF, JPEG_EOI};
    ((Decoder *)jpeg)->is_exhausted = 1;
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

static void *on_small(j_common_ptr jpeg, int pool, size_t size)
{
    Decoder *decoder = (Decoder *)jpeg;
    void *taken = take_small(&decoder->small, size);
    return taken ? taken : decoder->alloc_small(jpeg, pool, size);
}

static void on_allocated(j_common_ptr jpeg);

/* A new one for each header: one that lacks its tables would take another's. */
static void open_decoder(Decoder *decoder, const Slot *slot)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    jpeg_destroy_decompress(jpeg);
    decoder->kept.header_size = decoder->small.count = decoder->small.is_full = 0;
    jpeg->err = jpeg_std_error(&decoder->errors);
    decoder->errors.error_exit = on_error;
    decoder->errors.emit_message = on_message;
    jpeg_create_decompress(jpeg);
    decoder->progress = (struct jpeg_progress_mgr){.progress_monitor = on_scan};
    jpeg->src = &decoder->source;
    jpeg->progress = &decoder->progress;
    decoder->alloc_small = jpeg->mem->alloc_small;
    jpeg->mem->alloc_small = on_small;
    if (!slot->by_libjpeg) {
        decoder->realize_virt_arrays = jpeg->mem->realize_virt_arrays;
        jpeg->mem->realize_virt_arrays = on_allocated;
    }
}

static void open_source(Decoder *decoder, const Slot *slot, size_t at)
{
    decoder->is_exhausted = 0;
    decoder->source = (struct jpeg_source_mgr){
        .next_input_byte = slot->data + at,
        .bytes_in_buffer = slot->size - at,
        .init_source = nothing,
        .fill_input_buffer = fill,
        .skip_input_data = skip,
        .resync_to_restart = jpeg_resync_to_restart,
        .term_source = nothing,
    };
}

/* --- the filter ------------------------------------------------------------------------------- */

/* How `size` pixels come from those of a longer or shorter line. Output i is the sum over t < taps
 * of weights[i * stride + t] times source pixel first[i] + t; from `high` on they are 0. */
typedef struct {
    int low, high; /* source pixels [low, high) are all that is needed */
    int taps, stride;
    int *first;
    float *weights;
} Axis;

static void *allocate(j_decompress_ptr jpeg, size_t count, size_t size)
{
    Decoder *decoder = (Decoder *)jpeg;
    int is_possible = count <= (SIZE_MAX - sizeof(Room)) / size;
    Room *room = is_possible ? malloc(sizeof *room + count * size) : NULL;
    if (!room)
        ERREXIT1(jpeg, JERR_OUT_OF_MEMORY, 0);
    room->next = decoder->rooms;
    decoder->rooms = room;
    return room->bytes;
}

/* The part [start, start + extent) of `length` pixels becomes `size`. As in Pillow, a pixel beyond
 * the part counts if it is within the filter's reach, unless the picture is cropped first. */
static void plan_axis(j_decompress_ptr jpeg, Axis *axis, double start, double extent, int length,
                      int size, int is_reversed, int is_cropped_first)
{
    int least = is_cropped_first ? (int)floor(start + ROUNDING) : 0;
    if (is_cropped_first && ceil(start + extent - ROUNDING) < length)
        length = (int)ceil(start + extent - ROUNDING);
    double scale = extent / size, reach = scale < 1 ? 1 : scale;
    int stride = (int)ceil(2 * reach);
    *axis = (Axis){.low = length, .stride = stride};
    axis->first = allocate(jpeg, size, sizeof *axis->first);
    axis->weights = allocate(jpeg, size, stride * sizeof *axis->weights);
    for (int i = 0; i < size; i++) {
        double centre = start + (i + 0.5) * scale, total = 0;
        int first = (int)floor(centre - reach - 0.5) + 1, end = (int)ceil(centre + reach - 0.5);
        first = first < least ? least : first;
        end = end > length ? length : end;
        end = end > first + stride ? first + stride : end;
        int place = is_reversed ? size - 1 - i : i;
        float *weights = axis->weights + (size_t)place * stride;
        memset(weights, 0, stride * sizeof *weights);
        for (int t = 0; t < end - first; t++)
            total += 1 - fabs(first + t + 0.5 - centre) / reach;
        for (int t = 0; t < end - first; t++)
            weights[t] = (float)((1 - fabs(first + t + 0.5 - centre) / reach) / total);
        axis->first[place] = first;
        axis->low = first < axis->low ? first : axis->low;
        axis->high = end > axis->high ? end : axis->high;
        axis->taps = end - first > axis->taps ? end - first : axis->taps;
    }
}

FOR_EACH_PROCESSOR
static void add_rows(float *restrict line, int count, const unsigned char *restrict a,
                     float weight_a, const unsigned char *restrict b, float weight_b, int is_first)
{
    if (is_first)
        for (int i = 0; i < count; i++)
            line[i] = weight_a * a[i] + weight_b * b[i];
    else
        for (int i = 0; i < count; i++)
            line[i] += weight_a * a[i] + weight_b * b[i];
}

typedef float Pixel __attribute__((vector_size(16))); /* red, green, blue and what comes next */

static inline Pixel load(const float *from)
{
    Pixel pixel;
    memcpy(&pixel, from, sizeof pixel);
    return pixel;
}

/* Each store's fourth float is overwritten by the next: `out` holds one more than 3 * size. */
FOR_EACH_PROCESSOR
static void add_columns(float *restrict out, int size, const float *restrict line, const Axis *axis)
{
    for (int i = 0; i < size; i++) {
        const float *from = line + 3 * (axis->first[i] - axis->low);
        const float *weights = axis->weights + (size_t)i * axis->stride;
        Pixel sum = weights[0] * load(from);
        for (int t = 1; t < axis->taps; t++)
            sum += weights[t] * load(from + 3 * t);
        memcpy(out + 3 * i, &sum, sizeof sum);
    }
}

/* Weights sum to 1 but for their own roundings: with thousands of them white could pass 255. */
FOR_EACH_PROCESSOR
static void round_off(unsigned char *restrict out, int count, const float *restrict from)
{
    for (int i = 0; i < count; i++) {
        int level = (int)(from[i] + 0.5f); /* GCC compares floats one by one: they may trap */
        out[i] = (unsigned char)(level < 255 ? level : 255);
    }
}

/* --- one picture ------------------------------------------------------------------------------ */

static void check_header(j_decompress_ptr jpeg, const Slot *slot, const Batch *batch)
{
    double width = jpeg->image_width, height = jpeg->image_height;
    const double *box = slot->box;
    if (width * height > batch->max_pixels)
        fail((j_common_ptr)jpeg, TOO_LARGE);
    if (jpeg->jpeg_color_space != JCS_GRAYSCALE && jpeg->jpeg_color_space != JCS_YCbCr &&
        jpeg->jpeg_color_space != JCS_RGB)
        fail((j_common_ptr)jpeg, ELSEWHERE);
    int is_inside = box[0] >= 0 && box[0] + box[2] <= width + ROUNDING && /* and no NaN */
                    box[1] >= 0 && box[1] + box[3] <= height + ROUNDING;
    if (!(is_inside && box[2] > 0 && box[3] > 0))
        fail((j_common_ptr)jpeg, BAD_BOX);
}

static int eighths(const double *box, int height, int width)
{
    int n = 1;
    while (n < 8 && (box[2] * n < 8.0 * width || box[3] * n < 8.0 * height))
        n *= 2;
    return n;
}

static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks)
{
    if (!next_mcu(&((Decoder *)jpeg)->scan, blocks))
        fail((j_common_ptr)jpeg, AGAIN);
    return TRUE;
}

/* Let scan.h decode the scan. */
static void take_scan(j_decompress_ptr jpeg, const Named *named)
{
    Scan *scan = &((Decoder *)jpeg)->scan;
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        int component = jpeg->MCU_membership[i];
        const Named *pair = named + 2 * component;
        scan->blocks[i] = (Block){codes_of(&pair[0]), codes_of(&pair[1]), component};
    }
    uint32_t num_mcus = jpeg->MCUs_per_row * jpeg->MCU_rows_in_scan;
    scan->num_blocks = jpeg->blocks_in_MCU;
    scan->row_size = (int32_t)jpeg->MCUs_per_row;
    scan->interval = jpeg->restart_interval ? jpeg->restart_interval : num_mcus;
    scan->num_intervals = (num_mcus + scan->interval - 1) / scan->interval;
    jpeg->entropy->decode_mcu = decode_mcu;
}

static int is_taken(j_decompress_ptr jpeg) { return jpeg->entropy->decode_mcu == decode_mcu; }

/* In the place of libjpeg's own start of a scan. That checks the tables and builds its own of them,
 * a seventh of the time that a picture of 32x32 took: not of tables that are known and so checked,
 * since libjpeg will not decode by them. */
static void start_scan(j_decompress_ptr jpeg)
{
    Named named[2 * MAX_COMPS_IN_SCAN];
    int num_components = jpeg->comps_in_scan, num_known = 0;
    int is_baseline = !jpeg->arith_code && !jpeg->progressive_mode &&
                      !jpeg_has_multiple_scans(jpeg) && jpeg->Ss == 0; /* else it may be lossless */
    int count = is_baseline ? name_tables(jpeg, &((Decoder *)jpeg)->known, named) : 0;
    for (int i = 0; i < count; i++)
        num_known += is_known(&named[i]);
    /* With restart markers scan.h passes over damage that libjpeg sees, and who decodes a small
     * scan depends on the picture before: what is refused must not. */
    int are_known = count && num_known == count && !jpeg->restart_interval;
    if (are_known && jpeg->Se == DCTSIZE2 - 1)
        jpeg->comps_in_scan = 0;
    ((Decoder *)jpeg)->start_pass(jpeg);
    jpeg->comps_in_scan = num_components;
    for (int i = 0; i < count; i++)
        remember(&named[i]);
    if (are_known || (count && jpeg->src->bytes_in_buffer >= LEAST_SCAN_BYTES))
        take_scan(jpeg, named);
}

/* libjpeg calls this before it starts a picture's first scan. */
static void on_allocated(j_common_ptr jpeg)
{
    Decoder *decoder = (Decoder *)jpeg;
    decoder->realize_virt_arrays(jpeg);
    decoder->start_pass = decoder->jpeg.entropy->start_pass;
    decoder->jpeg.entropy->start_pass = start_scan;
}

/* Leave out columns, if that is worth it; returns the first one that is decoded. */
static int crop_columns(j_decompress_ptr jpeg, JDIMENSION left, JDIMENSION end)
{
    JDIMENSION width = end - left;
    if (is_taken(jpeg) && jpeg->output_width <= NARROW)
        return 0;
    jpeg_crop_scanline(jpeg, &left, &width);
    return (int)left;
}

/* Decode, of the scan's MCUs, those of columns [left, end), at `n` eighths of their size. The source
 * is where the scan begins. */
static void open_scan(j_decompress_ptr jpeg, JDIMENSION left, JDIMENSION end, int n)
{
    Scan *scan = &((Decoder *)jpeg)->scan;
    size_t size = jpeg->src->bytes_in_buffer;
    JDIMENSION side = n * (jpeg->comps_in_scan == 1 ? 1 : jpeg->max_h_samp_factor);
    scan->first_column = (int32_t)(left / side);
    scan->end_column = (int32_t)((end + side - 1) / side);
    if (size < LEAST_SCAN_BYTES) /* see start_scan(): damage behind a crop is seen as by libjpeg */
        scan->end_column = scan->row_size;
    scan->asked = scan->decoded = scan->num_opened = 0;
    scan->at = jpeg->src->next_input_byte;
    scan->end = scan->at + size;
    scan->plain = allocate(jpeg, size + MOST_MCU_BYTES, 1);
}

/* From here on the next row is the first of what is needed. Returns where in a row that begins. */
static int start_rows(j_decompress_ptr jpeg, int n, const Axis *x, int top)
{
    JDIMENSION left = x->low > MARGIN ? x->low - MARGIN : 0, end = x->high + MARGIN;
    end = end < jpeg->output_width ? end : jpeg->output_width;
    int first = crop_columns(jpeg, left, end);
    if (is_taken(jpeg))
        open_scan(jpeg, left, end, n);
    if (top)
        jpeg_skip_scanlines(jpeg, top);
    return 3 * (x->low - first);
}

static size_t row_size(j_decompress_ptr jpeg) { return 3 * (size_t)jpeg->output_width / 64 * 64 + 64; }

/* No row begins where a vector would: libjpeg-turbo writes such rows past the caches, and to read
 * them again at once took longer than to decode them: of 32x32 pixels, 1.8 times as long as all now
 * takes. */
static unsigned char *allocate_rows(j_decompress_ptr jpeg, int count)
{
    return (unsigned char *)allocate(jpeg, count + 1, row_size(jpeg)) + 1;
}

static void read_row(j_decompress_ptr jpeg, unsigned char *row)
{
    if (jpeg_read_scanlines(jpeg, &row, 1) != 1)
        fail((j_common_ptr)jpeg, BROKEN);
}

/* Decode the rows a ring at a time, and make each row of the slot as soon as its last one is in. */
static void paint(j_decompress_ptr jpeg, const Slot *slot, const Batch *batch, int n, const Axis *x,
                  const Axis *y)
{
    int left = start_rows(jpeg, n, x, y->low);
    int width = batch->width, count = 3 * (x->high - x->low);
    size_t size = row_size(jpeg), line_size = count + 3 * x->taps + 1;
    unsigned char *ring = allocate_rows(jpeg, y->taps);
    float *line = allocate(jpeg, line_size, sizeof *line);
    float *pixels = allocate(jpeg, 3 * width + 1, sizeof *pixels);
    memset(line, 0, line_size * sizeof *line);
    for (int i = 0, next = y->low; i < batch->height; i++) {
        int first = y->first[i], end = first + y->taps < y->high ? first + y->taps : y->high;
        const float *weights = y->weights + (size_t)i * y->stride;
        for (; next < end; next++)
            read_row(jpeg, ring + next % y->taps * size);
        for (int t = 0; t < end - first; t += 2) {
            int is_pair = t + 1 < end - first;
            const unsigned char *a = ring + (first + t) % y->taps * size + left;
            const unsigned char *b = ring + (first + t + is_pair) % y->taps * size + left;
            add_rows(line, count, a, weights[t], b, is_pair ? weights[t + 1] : 0, t == 0);
        }
        add_columns(pixels, width, line, x);
        round_off(slot->out + 3 * (size_t)width * i, 3 * width, pixels);
    }
}

/* Does part [start, start + extent) of a line become just the pixels that it has? */
static int is_copy(double start, double extent, int size)
{
    return extent == size && start == floor(start);
}

/* What paint() would make of a crop that has the slot's size: its pixels. */
static void copy_rows(j_decompress_ptr jpeg, const Slot *slot, const Batch *batch, int n, int left,
                      int top)
{
    int width = batch->width;
    Axis x = {.low = left, .high = left + width};
    unsigned char *out = slot->out;
    int start = start_rows(jpeg, n, &x, top);
    unsigned char *row = allocate_rows(jpeg, 1), *from = row + start;
    for (int i = 0; i < batch->height; i++, out += 3 * (size_t)width) {
        read_row(jpeg, row);
        if (!slot->is_flipped)
            memcpy(out, from, 3 * (size_t)width);
        else
            for (int k = 0; k < width; k++)
                memcpy(out + 3 * (width - 1 - k), from + 3 * k, 3);
    }
}

/* Read the header and set up all that depends on it alone. */
static void read_header(Decoder *decoder, const Slot *slot, const Batch *batch, int n)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    jpeg_read_header(jpeg, TRUE);
    check_header(jpeg, slot, batch);
    jpeg->scale_num = n;
    jpeg->scale_denom = 8;
    jpeg->out_color_space = JCS_RGB;
    jpeg_start_decompress(jpeg);
    /* A progressive file without its end may lack scans, and nobody would warn. */
    if (jpeg_has_multiple_scans(jpeg) && decoder->is_exhausted)
        fail((j_common_ptr)jpeg, BROKEN);
    /* Lossless JPEGs, which libjpeg-turbo 3 reads, have no DCT to scale. */
    if (jpeg->output_width != (jpeg->image_width * n + 7) / 8)
        fail((j_common_ptr)jpeg, ELSEWHERE);
    if (jpeg->output_width <= NARROW && is_taken(jpeg) && !jpeg->restart_interval &&
        !decoder->is_exhausted)
        keep(&decoder->kept, jpeg, &decoder->small, slot->data,
             (size_t)(jpeg->src->next_input_byte - slot->data));
}

static void open_picture(Decoder *decoder, const Slot *slot, const Batch *batch, int n)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    if (!slot->by_libjpeg &&
        go_back(&decoder->kept, jpeg, &decoder->small, slot->data, slot->size, n)) {
        open_source(decoder, slot, decoder->kept.header_size);
        check_header(jpeg, slot, batch);
    } else {
        open_decoder(decoder, slot);
        open_source(decoder, slot, 0);
        read_header(decoder, slot, batch, n);
    }
}

static void decode(Decoder *decoder, const Slot *slot, const Batch *batch)
{
    j_decompress_ptr jpeg = &decoder->jpeg;
    Axis x, y;
    /* Decoders that read all of it refuse what is cut off: not seeing the end is no reason to take
     * it, or a file would be good or bad by the place of its crop. */
    if (slot->size < 4 || slot->data[slot->size - 2] != 0xFF || slot->data[slot->size - 1] != JPEG_EOI)
        fail((j_common_ptr)jpeg, ELSEWHERE);
    int n = eighths(slot->box, batch->height, batch->width);
    open_picture(decoder, slot, batch, n);
    double left = slot->box[0] * n / 8, width = slot->box[2] * n / 8;
    double top = slot->box[1] * n / 8, height = slot->box[3] * n / 8;
    if (is_copy(left, width, batch->width) && is_copy(top, height, batch->height)) {
        copy_rows(jpeg, slot, batch, n, (int)left, (int)top);
        return;
    }
    plan_axis(jpeg, &x, left, width, jpeg->output_width, batch->width, slot->is_flipped,
              batch->is_cropped_first);
    plan_axis(jpeg, &y, top, height, jpeg->output_height, batch->height, 0, batch->is_cropped_first);
    paint(jpeg, slot, batch, n, &x, &y);
}

/* The one place errors come back to. It has no variables of its own, so none is lost. */
static int attempt(Decoder *decoder, const Slot *slot, const Batch *batch)
{
    if (setjmp(decoder->escape))
        return decoder->status;
    decode(decoder, slot, batch);
    return OK;
}

static int decode_once(Decoder *decoder, const Slot *slot, const Batch *batch)
{
    int status = attempt(decoder, slot, batch);
    if (status != OK)
        decoder->kept.header_size = 0; /* however it is left */
    for (Room *room; (room = decoder->rooms);) {
        decoder->rooms = room->next;
        free(room);
    }
    return status;
}

static int decode_slot(Decoder *decoder, Slot *slot, const Batch *batch)
{
    int status = decode_once(decoder, slot, batch);
    if (status == AGAIN) {
        slot->by_libjpeg = 1;
        status = decode_once(decoder, slot, batch);
    }
    if (status != OK)
        memset(slot->out, 0, 3 * (size_t)batch->height * batch->width);
    return status;
}

/* --- a batch ---------------------------------------------------------------------------------- */

static void *work(void *shared)
{
    Batch *batch = shared;
    Decoder decoder;
    int i;
    memset(&decoder, 0, offsetof(Decoder, escape)); /* tables without a code: as good as any */
    decoder.kept.header_size = 0;
    while ((i = atomic_fetch_add(&batch->next, 1)) < batch->count)
        batch->status[i] = decode_slot(&decoder, &batch->slots[i], batch);
    jpeg_destroy_decompress(&decoder.jpeg);
    return NULL;
}

/* Threads live for one call: nothing to shut down, nothing a fork() could lose. If the system gives
 * fewer, those there do the work. */
static void crop_resize(Batch *batch, int threads)
{
    pthread_t helpers[MAX_THREADS];
    int most = batch->count < MAX_THREADS ? batch->count : MAX_THREADS, started = 0;
    atomic_init(&batch->next, 0);
    while (started + 1 < (threads < most ? threads : most)) {
        if (pthread_create(&helpers[started], NULL, work, batch))
            break;
        started++;
    }
    work(batch);
    while (started > 0)
        pthread_join(helpers[--started], NULL);
}

/* Width and height from the frame header, without libjpeg. */
static int find_size(const unsigned char *data, size_t size, int32_t *width_height)
{
    width_height[0] = width_height[1] = 0;
    if (size < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF)
        return ELSEWHERE;
    for (size_t at = 2; size - at >= 10;) {
        const unsigned char *marker = data + at;
        int code = marker[1];
        if (marker[0] != 0xFF || code == 0xFF) { /* padding, or bytes that libjpeg skips, too */
            at++;
            continue;
        }
        if (code == 0 || code == 1 || (code >= 0xD0 && code <= 0xD7)) {
            at += 2;
            continue;
        }
        if (code >= 0xD8 && code <= 0xDA) /* a second start, the end, or the data */
            return BROKEN;
        if (code >= 0xC0 && code <= 0xCF && code != 0xC4 && code != 0xC8 && code != 0xCC) {
            width_height[0] = marker[7] << 8 | marker[8];
            width_height[1] = marker[5] << 8 | marker[6];
            if (!width_height[0] || !width_height[1])
                return BROKEN;
            int is_dct = code <= 0xC2 || code == 0xC9 || code == 0xCA;
            int is_plain = marker[4] == 8 && (marker[9] == 1 || marker[9] == 3);
            return is_dct && is_plain ? OK : ELSEWHERE;
        }
        size_t length = marker[2] << 8 | marker[3];
        if (length < 2 || length + 2 > size - at)
            return BROKEN;
        at += length + 2;
    }
    return BROKEN;
}

#ifndef SHARDKIT_WITHOUT_PYTHON
/* --- Python ----------------------------------------------------------------------------------- */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static void release(Py_buffer *views, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        PyBuffer_Release(&views[i]);
    PyMem_Free(views);
}

/* The bytes of each value, held until release(); NULL with an exception set. */
static Py_buffer *hold(PyObject *values, Py_ssize_t count)
{
    Py_buffer *views = PyMem_Calloc(count ? count : 1, sizeof *views);
    if (!views)
        return (Py_buffer *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = PySequence_GetItem(values, i);
        int failed = !value || PyObject_GetBuffer(value, &views[i], PyBUF_SIMPLE);
        Py_XDECREF(value);
        if (failed) {
            release(views, i);
            return NULL;
        }
    }
    return views;
}

/* headers(values, sizes (B, 2) int32 out, status (B,) int32 out) */
static PyObject *py_headers(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *values;
    Py_buffer sizes, status, *views = NULL;
    if (!PyArg_ParseTuple(args, "Ow*w*", &values, &sizes, &status))
        return NULL;
    Py_ssize_t count = status.len / 4;
    if (PySequence_Size(values) != count || sizes.len != count * 8)
        PyErr_SetString(PyExc_ValueError, "headers: arguments of different lengths");
    else if ((views = hold(values, count))) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < count; i++)
            ((int32_t *)status.buf)[i] =
                find_size(views[i].buf, views[i].len, (int32_t *)sizes.buf + 2 * i);
        Py_END_ALLOW_THREADS
        release(views, count);
    }
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&status);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static void run(Py_buffer *views, const double *boxes, const char *flips, unsigned char *out,
                Batch *batch, Slot *slots, int threads)
{
    size_t slot_size = 3 * (size_t)batch->height * batch->width;
    for (int i = 0; i < batch->count; i++)
        slots[i] = (Slot){views[i].buf,      views[i].len,          boxes + 4 * i, flips[i],
                          batch->by_libjpeg, out + i * slot_size};
    batch->slots = slots;
    crop_resize(batch, threads);
}

/* crop_resize(values, boxes (B, 4) float64, flips (B,) bool, out (B, height, width, 3) uint8,
 *             status (B,) int32 out, height, width, threads, max_pixels, is_cropped_first,
 *             by_libjpeg = False) */
static PyObject *py_crop_resize(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *values;
    Py_buffer boxes, flips, out, status, *views = NULL;
    Batch batch = {.by_libjpeg = 0};
    int threads;
    if (!PyArg_ParseTuple(args, "Oy*y*w*w*iiidp|p", &values, &boxes, &flips, &out, &status,
                          &batch.height, &batch.width, &threads, &batch.max_pixels,
                          &batch.is_cropped_first, &batch.by_libjpeg))
        return NULL;
    batch.count = (int)flips.len;
    batch.status = status.buf;
    Slot *slots = PyMem_Calloc(flips.len + 1, sizeof *slots);
    if (!slots)
        PyErr_NoMemory();
    else if (PySequence_Size(values) != flips.len || boxes.len != flips.len * 32 ||
             status.len != flips.len * 4 || flips.len > INT32_MAX / 2 || batch.height < 1 ||
             batch.width < 1 || out.len / batch.height / batch.width / 3 != flips.len)
        PyErr_SetString(PyExc_ValueError, "crop_resize: arguments of different lengths");
    else if ((views = hold(values, flips.len))) {
        Py_BEGIN_ALLOW_THREADS
        run(views, boxes.buf, flips.buf, out.buf, &batch, slots, threads);
        Py_END_ALLOW_THREADS
        release(views, flips.len);
    }
    PyMem_Free(slots);
    PyBuffer_Release(&boxes);
    PyBuffer_Release(&flips);
    PyBuffer_Release(&out);
    PyBuffer_Release(&status);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"headers", py_headers, METH_VARARGS, NULL},
    {"crop_resize", py_crop_resize, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_kernel", .m_methods = methods,
};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
#endif
