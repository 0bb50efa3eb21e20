/* Mutated JPEGs through the batch kernel, without Python, under the sanitizers.
 *
 *     kernel_fuzz SECONDS SEED FILE...
 *
 * Files are changed at random (bytes flipped, numbers set to their limits, cut short, a piece of
 * another file spliced in, restart markers moved, doubled, dropped and renumbered), and cut out and
 * resized at random. A batch is decoded twice, on one thread and on two: statuses and pixels must be
 * the same, so none may come from memory never written. And a third time with libjpeg's own Huffman
 * decoder: what both accept has the same pixels, and what that one accepts is accepted. Prints how
 * many there were of each status, and how many only libjpeg's refused. */
#define SHARDKIT_WITHOUT_PYTHON
#define LEAST_SCAN_BYTES 16
#include "../shardkit/images/kernel.c"

#include <stdlib.h>
#include <time.h>

enum { BATCH = 16, MOST_BYTES = 1 << 20, MOST_PIXELS = 1 << 20 };

/* Counted besides each status: accepted, and libjpeg's decoder has refused it. */
enum { MORE = BAD_BOX + 1 };

typedef struct {
    unsigned char *data;
    size_t size;
} File;

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 32) * below >> 32);
}

static File read_file(const char *path)
{
    File file = {malloc(MOST_BYTES), 0};
    FILE *stream = fopen(path, "rb");
    if (!stream || !file.data)
        exit(3);
    file.size = fread(file.data, 1, MOST_BYTES, stream);
    fclose(stream);
    return file;
}

/* Half of all changes hit the first 700 bytes: the headers. */
static size_t somewhere(const File *file)
{
    return draw(2) && file->size > 700 ? draw(700) : draw((uint32_t)file->size);
}

/* Some restart marker at or behind `at`; the file's size if there is none. */
static size_t restart_marker(const File *file, size_t at)
{
    for (; at + 1 < file->size; at++)
        if (file->data[at] == 0xFF && (file->data[at + 1] & 0xF8) == JPEG_RST0)
            return at;
    return file->size;
}

/* The bytes from `from` on to where `to` is now, which may lie before. */
static void move(File *file, size_t from, size_t to)
{
    if (file->size - from > MOST_BYTES - to)
        return;
    memmove(file->data + to, file->data + from, file->size - from);
    file->size = to + (file->size - from);
}

static void change_markers(File *file)
{
    size_t at = restart_marker(file, draw((uint32_t)file->size)), other;
    if (at == file->size)
        return;
    switch (draw(6)) {
    case 0: /* another number */
        file->data[at + 1] = JPEG_RST0 + draw(8);
        break;
    case 1: /* no marker */
        move(file, at + 2, at);
        break;
    case 2: /* two, or data before it */
        move(file, at, at + 2);
        break;
    case 3: /* an interval less, or several: the numbers may be right again */
        other = restart_marker(file, at + 2);
        for (uint32_t more = draw(2) * 7; more > 0 && other < file->size; more--)
            other = restart_marker(file, other + 2);
        move(file, other, at);
        break;
    case 4: /* an interval twice */
        other = restart_marker(file, at + 2);
        move(file, at, other);
        break;
    default: /* elsewhere */
        move(file, at + 2, at);
        other = somewhere(file);
        move(file, other, other + 2);
        if (other + 2 < file->size) {
            file->data[other] = 0xFF;
            file->data[other + 1] = JPEG_RST0 + draw(8);
        }
    }
}

static void change(File *file, const File *other)
{
    static const unsigned char limits[] = {0, 1, 2, 4, 8, 63, 64, 127, 128, 254, 255, 0xD8, 0xDA};
    size_t at = somewhere(file), from, count;
    switch (draw(10)) {
    case 8:
    case 9:
        change_markers(file);
        break;
    case 0:
        file->size = at + 1;
        break;
    case 1: /* from here on another file's bytes */
        from = draw((uint32_t)other->size);
        count = other->size - from;
        count = count < MOST_BYTES - at ? count : MOST_BYTES - at;
        memcpy(file->data + at, other->data + from, count);
        file->size = at + count;
        break;
    case 2: /* a piece moved within the file: scans and tables repeated or overwritten */
        from = draw((uint32_t)file->size);
        count = draw(600);
        count = count < file->size - from ? count : file->size - from;
        count = count < MOST_BYTES - at ? count : MOST_BYTES - at;
        memmove(file->data + at, file->data + from, count);
        file->size = at + count > file->size ? at + count : file->size;
        break;
    case 3:
    case 4:
        file->data[at] = limits[draw(sizeof limits)];
        break;
    default:
        file->data[at] ^= 1 << draw(8);
    }
}

/* An exact allocation, so that a read past its end is seen. */
static File mutant(const File *files, int count)
{
    static unsigned char room[MOST_BYTES];
    const File *one = &files[draw(count)];
    File file = {room, one->size};
    memcpy(room, one->data, one->size);
    for (uint32_t left = draw(5); left > 0; left--)
        change(&file, &files[draw(count)]);
    file.data = malloc(file.size);
    memcpy(file.data, room, file.size);
    return file;
}

/* Mostly a box that lies in the picture, as far as its header tells. */
static void draw_box(double *box, const File *file)
{
    int32_t size[2];
    find_size(file->data, file->size, size);
    for (int axis = 0; axis < 2; axis++) {
        double most = size[axis] ? size[axis] : 50, extent = most * (draw(1000) + 1) / 1000;
        extent = draw(4) ? extent : most;
        box[axis] = (most - extent) * draw(1001) / 1000;
        box[axis + 2] = draw(50) ? extent : extent * 2;
    }
}

static void run_batch(const File *files, int count, long *seen)
{
    int height = 1 + draw(64), width = 1 + draw(64);
    size_t pixels = 3 * (size_t)height * width;
    File mutants[BATCH];
    Slot slots[BATCH];
    double boxes[BATCH][4];
    int32_t status[3][BATCH];
    unsigned char *out[3] = {malloc(BATCH * pixels), malloc(BATCH * pixels),
                             malloc(BATCH * pixels)};
    for (int run = 0; run < 3; run++) {
        memset(out[run], run, BATCH * pixels);
        for (int i = 0; i < BATCH; i++) {
            if (run == 0) {
                mutants[i] = mutant(files, count);
                draw_box(boxes[i], &mutants[i]);
            }
            slots[i] = (Slot){mutants[i].data, mutants[i].size, boxes[i], i % 2, run == 2,
                              out[run] + i * pixels};
        }
        Batch batch = {.slots = slots, .status = status[run], .count = BATCH,
                       .height = height, .width = width, .max_pixels = MOST_PIXELS,
                       .is_cropped_first = width % 2};
        crop_resize(&batch, run == 1 ? 2 : 1);
    }
    for (int i = 0; i < BATCH; i++) {
        const unsigned char *first = out[0] + i * pixels;
        int is_same = status[0][i] == status[1][i] && !memcmp(first, out[1] + i * pixels, pixels);
        int is_as_libjpegs = status[0][i] == status[2][i]
                              ? !memcmp(first, out[2] + i * pixels, pixels)
                              : status[0][i] == OK; /* libjpeg has looked at more */
        if (!is_same || !is_as_libjpegs) {
            FILE *stream = fopen("differs.jpg", "wb");
            fwrite(mutants[i].data, 1, mutants[i].size, stream);
            fclose(stream);
            fprintf(stderr, "%s differ: %d x %d, status %d, %d and %d, see differs.jpg\n",
                    is_same ? "the kernel and libjpeg" : "two runs", width, height, status[0][i],
                    status[1][i], status[2][i]);
            exit(2);
        }
        seen[status[0][i]]++;
        seen[MORE] += status[0][i] != status[2][i];
        free(mutants[i].data);
    }
    for (int run = 0; run < 3; run++)
        free(out[run]);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 3;
    int count = argc - 3;
    File *files = malloc(count * sizeof *files);
    for (int i = 0; i < count; i++)
        files[i] = read_file(argv[3 + i]);
    state = strtoull(argv[2], NULL, 10);
    long seen[MORE + 1] = {0};
    time_t end = time(NULL) + atoi(argv[1]);
    do
        run_batch(files, count, seen);
    while (time(NULL) < end);
    printf("ok %ld elsewhere %ld broken %ld too-large %ld bad-box %ld more %ld\n", seen[OK],
           seen[ELSEWHERE], seen[BROKEN], seen[TOO_LARGE], seen[BAD_BOX], seen[MORE]);
    for (int i = 0; i < count; i++)
        free(files[i].data);
    free(files);
    return 0;
}
