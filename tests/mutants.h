/* Files changed at random, for the drivers that feed compiled modules with them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20 };

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

static void write_file(const char *path, File file)
{
    FILE *stream = fopen(path, "wb");
    fwrite(file.data, 1, file.size, stream);
    fclose(stream);
}

/* Half of all changes hit the first 700 bytes: the headers. */
static size_t somewhere(const File *file)
{
    return draw(2) && file->size > 700 ? draw(700) : draw((uint32_t)file->size);
}

static void move_piece(File *file, size_t to, const unsigned char *from, size_t count)
{
    count = count < MOST_BYTES - to ? count : MOST_BYTES - to;
    memmove(file->data + to, from, count);
    file->size = to + count > file->size ? to + count : file->size;
}

/* Some restart marker at or behind `at`; the file's size if there is none. */
static size_t restart_marker(const File *file, size_t at)
{
    for (; at + 1 < file->size; at++)
        if (file->data[at] == 0xFF && (file->data[at + 1] & 0xF8) == 0xD0)
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
        file->data[at + 1] = 0xD0 + draw(8);
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
            file->data[other + 1] = 0xD0 + draw(8);
        }
    }
}

static void change(File *file, const File *other)
{
    static const unsigned char limits[] = {0, 1, 2, 4, 8, 63, 64, 127, 128, 254, 255, 0xD8, 0xDA};
    size_t at = somewhere(file), from, count;
    switch (draw(11)) {
    case 0:
        file->size = at + 1;
        break;
    case 1: /* from here on another file's bytes */
        from = draw((uint32_t)other->size);
        file->size = at;
        move_piece(file, at, other->data + from, other->size - from);
        break;
    case 2: /* a piece moved within the file: scans and tables repeated or overwritten */
        from = draw((uint32_t)file->size);
        count = draw(600);
        move_piece(file, at, file->data + from, count < file->size - from ? count : file->size - from);
        break;
    case 3:
    case 4:
        file->data[at] = limits[draw(sizeof limits)];
        break;
    case 5:
    case 6:
        change_markers(file);
        break;
    default:
        file->data[at] ^= 1 << draw(8);
    }
    if (!file->size)
        file->size = 1;
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

/* The command line of a driver, SECONDS SEED FILE...: its files, and how many. */
static File *read_files(int argc, char **argv, int *count)
{
    if (argc < 4)
        exit(3);
    *count = argc - 3;
    File *files = malloc(*count * sizeof *files);
    for (int i = 0; i < *count; i++)
        files[i] = read_file(argv[3 + i]);
    state = strtoull(argv[2], NULL, 10);
    return files;
}

static void free_files(File *files, int count)
{
    for (int i = 0; i < count; i++)
        free(files[i].data);
    free(files);
}
