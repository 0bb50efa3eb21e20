/* Mutated JPEGs through the rewriter of coefficients, without Python, under the sanitizers.
 *
 *     restarts_fuzz SECONDS SEED FILE...
 *
 * Each file is changed at random and written with restart markers, as restarts.py joins it. That is
 * written back with the header that it had, or, if it was progressive, by a script of scans, and
 * now and then with another file's header or a script of random bytes. Where the scan came back
 * byte for byte, or a whole script was kept, both files must decode to the same pixels; only those
 * that are decoded without a warning count. Prints how many there were of each. */
#define SHARDKIT_WITHOUT_PYTHON
#include "../shardkit/images/restarts.c"
#include "mutants.h"

#include <time.h>

#define MOST_PIXELS (1 << 18)

enum { SKIPPED, LEFT, UNDONE, CHANGED, PROGRESSIVE, FOREIGN, SEEN };
static const char *const names[SEEN] = {"skipped",     "left",    "undone",
                                        "not-the-same", "progressive", "foreign"};

/* Where restarts.py cuts. */
typedef struct {
    size_t frame, frame_end, scan, scan_end, end;
    int code;
} Parts;

static int find_parts(File file, Parts *parts)
{
    const unsigned char *data = file.data;
    size_t at = 2;
    *parts = (Parts){0};
    while (!parts->scan) {
        while (at + 4 < file.size && data[at] == 0xFF && data[at + 1] == 0xFF)
            at++;
        if (at + 4 > file.size || data[at] != 0xFF)
            return 0;
        int code = data[at + 1];
        size_t end = at + 2 + (data[at + 2] << 8 | data[at + 3]);
        if (code < 0xC0 || (code >= 0xD0 && code < 0xDA) || end < at + 4 || end > file.size)
            return 0;
        if (code <= 0xCF && code != 0xC4 && code != 0xC8 && code != 0xCC) {
            if (parts->frame || code > 0xC2 || end < at + 10 || data[at + 4] != 8)
                return 0;
            parts->frame = at;
            parts->frame_end = end;
            parts->code = code;
        }
        if (code == 0xDA) {
            parts->scan = at;
            parts->scan_end = end;
        }
        at = end;
    }
    while (at + 1 < file.size && (data[at] != 0xFF || !data[at + 1] || (data[at + 1] & 0xF8) == 0xD0))
        at++;
    parts->end = at;
    return parts->frame && at + 1 < file.size;
}

/* --- pixels ----------------------------------------------------------------------------------- */

static void stop(j_common_ptr jpeg) { longjmp(*(jmp_buf *)jpeg->client_data, 1); }

static void count_warning(j_common_ptr jpeg, int level) { jpeg->err->num_warnings += level < 0; }

/* FNV-1a of all rows; 0 if it is not decoded without a warning. */
static uint64_t hash_pixels(File file)
{
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf escape;
    volatile uint64_t hash = 0;
    unsigned char *volatile row = NULL;
    memset(&jpeg, 0, sizeof jpeg);
    jpeg.err = jpeg_std_error(&errors);
    errors.error_exit = stop;
    errors.emit_message = count_warning;
    jpeg.client_data = &escape;
    if (!setjmp(escape)) {
        uint64_t so_far = 14695981039346656037u;
        jpeg_create_decompress(&jpeg);
        jpeg_mem_src(&jpeg, file.data, file.size);
        jpeg_read_header(&jpeg, TRUE);
        jpeg_start_decompress(&jpeg);
        size_t size = (size_t)jpeg.output_width * jpeg.output_components;
        unsigned char *pixels = row = malloc(size);
        while (jpeg.output_scanline < jpeg.output_height) {
            jpeg_read_scanlines(&jpeg, &pixels, 1);
            for (size_t i = 0; i < size; i++)
                so_far = (so_far ^ pixels[i]) * 1099511628211u;
        }
        jpeg_finish_decompress(&jpeg);
        hash = errors.num_warnings ? 0 : so_far | 1;
    }
    jpeg_destroy_decompress(&jpeg);
    free(row);
    return hash;
}

/* --- one file --------------------------------------------------------------------------------- */

static File copy(const unsigned char *data, size_t size)
{
    File file = {malloc(size + 1), size};
    if (size)
        memcpy(file.data, data, size);
    return file;
}

static void append(File *file, const unsigned char *data, size_t size)
{
    file->data = realloc(file->data, file->size + size + 1);
    if (size)
        memcpy(file->data + file->size, data, size);
    file->size += size;
}

static int recoded(File jpeg, File header, File script, unsigned int interval, File *made)
{
    Job job = {
        .jpeg = {jpeg.data, jpeg.size},
        .header = {header.data, header.size},
        .script = {script.data, script.size},
        .interval = interval,
        .max_pixels = MOST_PIXELS,
    };
    int status = run(&job);
    *made = status == OK ? copy(job.out, job.out_size) : (File){NULL, 0};
    free_job(&job);
    return status == OK;
}

static _Noreturn void differ(File before, File after, const char *what)
{
    write_file("before.jpg", before);
    write_file("after.jpg", after);
    fprintf(stderr, "%s: see before.jpg and after.jpg\n", what);
    exit(2);
}

static void compare_pixels(File before, File after, const char *what)
{
    uint64_t hash = hash_pixels(before);
    if (hash && hash_pixels(after) != hash)
        differ(before, after, what);
}

static File joined(File file, Parts at, File made)
{
    Parts of_made;
    if (!find_parts(made, &of_made))
        differ(file, made, "what was made cannot be cut");
    int is_progressive = at.code == 0xC2;
    File whole = copy(file.data, is_progressive ? at.frame_end : at.scan);
    size_t tables_end = is_progressive ? of_made.scan_end : of_made.scan;
    append(&whole, made.data + of_made.frame_end, tables_end - of_made.frame_end);
    if (is_progressive)
        whole.data[at.frame + 1] = of_made.code;
    else
        append(&whole, file.data + at.scan, at.scan_end - at.scan);
    append(&whole, made.data + of_made.scan_end, of_made.end - of_made.scan_end);
    append(&whole, file.data + at.end, file.size - at.end);
    return whole;
}

/* The one that libjpeg writes for a picture of one component, or of three. */
static File standard_script(File file, Parts at)
{
    static const unsigned char one[] = {1, 0, 0, 1,  1, 1, 5, 2,    1, 6, 63, 2,
                                        1, 1, 63, 0x21, 1, 0, 0, 0x10, 1, 1, 63, 0x10};
    static const unsigned char three[] = {7, 0, 0, 1,     1, 1, 5, 2,     4, 1, 63, 1, 2, 1, 63, 1,
                                          1, 6, 63, 2,    1, 1, 63, 0x21, 7, 0, 0, 0x10,
                                          4, 1, 63, 0x10, 2, 1, 63, 0x10, 1, 1, 63, 0x10};
    int components = file.data[at.frame + 9];
    return components == 1 ? copy(one, sizeof one) : copy(three, sizeof three);
}

static int undo(File file, Parts at, File whole)
{
    Parts of_whole, of_made;
    File made, header = copy(file.data, at.scan_end);
    int seen = CHANGED;
    if (!find_parts(whole, &of_whole))
        differ(file, whole, "what was joined cannot be cut");
    if (recoded(whole, header, (File){NULL, 0}, 0, &made) && find_parts(made, &of_made)) {
        size_t size = at.end - at.scan_end;
        if (of_made.end - of_made.scan_end == size &&
            !memcmp(made.data + of_made.scan_end, file.data + at.scan_end, size)) {
            compare_pixels(file, whole, "pixels differ with restart markers");
            seen = UNDONE;
        }
    }
    free(made.data);
    free(header.data);
    return seen;
}

static int undo_progressive(File file, Parts at, File whole)
{
    File made, script = standard_script(file, at);
    if (recoded(whole, (File){NULL, 0}, script, draw(2) * draw(99), &made)) {
        compare_pixels(whole, made, "pixels differ when it is progressive again");
        compare_pixels(file, whole, "pixels differ when it is no longer progressive");
    }
    free(made.data);
    free(script.data);
    return PROGRESSIVE;
}

/* Anybody's header, and scans that nobody would write: it shall only do no harm. */
static int try_foreign(File whole, File other)
{
    File made, header = {NULL, 0}, script = {NULL, 0};
    Parts at;
    if (draw(2))
        header = find_parts(other, &at) ? copy(other.data, at.scan_end) : copy(other.data, other.size);
    else
        script = copy(whole.data, 4 * draw(12)); /* none is so short: it has a frame and a scan */
    if (script.size && draw(2))
        for (size_t i = 0; i < script.size; i++)
            script.data[i] = draw(4) ? draw(8) : i % 4 == 2 ? 63 : 0;
    recoded(whole, header, script, draw(100), &made);
    free(made.data);
    free(header.data);
    free(script.data);
    return FOREIGN;
}

static int run_one(File file, File other)
{
    Parts at;
    File made, whole;
    int seen;
    if (!find_parts(file, &at)) {
        recoded(file, other, (File){NULL, 0}, draw(100), &made);
        free(made.data);
        return SKIPPED;
    }
    if (!recoded(file, (File){NULL, 0}, (File){NULL, 0}, 1 + draw(20), &made))
        return LEFT;
    int is_whole = file.data[at.end + 1] == 0xD9;
    whole = joined(file, at, made);
    if (draw(5) == 0)
        seen = try_foreign(whole, other);
    else if (at.code == 0xC2)
        seen = undo_progressive(file, at, whole);
    else if (is_whole)
        seen = undo(file, at, whole);
    else
        seen = SKIPPED;
    free(made.data);
    free(whole.data);
    return seen;
}

int main(int argc, char **argv)
{
    int count;
    File *files = read_files(argc, argv, &count);
    long seen[SEEN] = {0};
    clock_t end = clock() + atoi(argv[1]) * CLOCKS_PER_SEC; /* others may use the cores */
    do {
        File file = mutant(files, count), other = mutant(files, count);
        seen[run_one(file, other)]++;
        free(file.data);
        free(other.data);
    } while (clock() < end);
    for (int i = 0; i < SEEN; i++)
        printf("%s %ld ", names[i], seen[i]);
    printf("\n");
    free_files(files, count);
    return 0;
}
