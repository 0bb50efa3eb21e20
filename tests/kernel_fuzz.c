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
#define LEAST_SCAN_BYTES 1 /* else who decodes a file depended on the one before */
#include "../shardkit/images/kernel.c"

#include "mutants.h"

#include <time.h>

enum { BATCH = 16, MOST_PIXELS = 1 << 20 };

/* Counted besides each status: accepted, and libjpeg's decoder has refused it. */
enum { MORE = BAD_BOX + 1 };

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
    const File *one = NULL; /* mostly of one file, for the headers that come again */
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
                if (i % 4 == 0)
                    one = &files[draw((uint32_t)count)];
                mutants[i] = draw(4) ? mutant(one, 1) : mutant(files, count);
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
            write_file("differs.jpg", mutants[i]);
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
    int count;
    File *files = read_files(argc, argv, &count);
    long seen[MORE + 1] = {0};
    clock_t end = clock() + atoi(argv[1]) * CLOCKS_PER_SEC; /* others may use the cores */
    do
        run_batch(files, count, seen);
    while (clock() < end);
    printf("ok %ld elsewhere %ld broken %ld too-large %ld bad-box %ld more %ld\n", seen[OK],
           seen[ELSEWHERE], seen[BROKEN], seen[TOO_LARGE], seen[BAD_BOX], seen[MORE]);
    free_files(files, count);
    return 0;
}
