/* libjpeg as it was before a picture's first MCU, to go back to for the next picture.
 *
 * What libjpeg is by then depends on the bytes of the header (all up to the scan) and on the scale,
 * and on nothing else. Pictures of one size that one program wrote have the same header, and of
 * one of 32x32 to read it and to set everything up took a quarter of the time. So both are kept, and
 * if the next picture has the same, libjpeg is set back in two copies: libjpeg's struct, and all
 * that it allocates as "small", for which it is given one piece of memory here. That is done with
 * libjpeg-turbo 2.1 alone, of which 2.1.5 was tried: others may keep more elsewhere.
 *
 * Beside them are samples and coefficients, which are written before they are read, and what
 * jpeg_create_decompress allocates. As scan.h decodes in its place, libjpeg changes nothing there
 * that matters to another picture, but in jpeg_crop_scanline: who keeps must not call that.
 */
#include <stddef.h>
#include <string.h>

#include <jpeglib.h>

enum {
    SMALL_BYTES = 16 << 10, /* three components take 7 KB, and with tables of libjpeg's 13 */
    MOST_HEADER_BYTES = 2048,
    ALIGNMENT = 64, /* libjpeg-turbo's vectors ask for 32 at most */
    CAN_GO_BACK = LIBJPEG_TURBO_VERSION_NUMBER / 1000 == 2001,
};

typedef struct {
    _Alignas(ALIGNMENT) unsigned char bytes[SMALL_BYTES];
    size_t count;
    int is_full; /* something lies elsewhere */
} Small;

typedef struct {
    unsigned char header[MOST_HEADER_BYTES];
    size_t header_size; /* 0: nothing is kept */
    struct jpeg_decompress_struct jpeg;
    Small small;
} Kept;

/* NULL if there is no room. */
static void *take_small(Small *small, size_t size)
{
    if (size > SMALL_BYTES - small->count) {
        small->is_full = 1;
        return NULL;
    }
    void *taken = small->bytes + small->count;
    size_t count = small->count + (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    small->count = count < SMALL_BYTES ? count : SMALL_BYTES;
    return memset(taken, 0, size); /* nothing of another picture, should libjpeg read it first */
}

static void copy_small(Small *to, const Small *from)
{
    memcpy(to->bytes, from->bytes, from->count);
    to->count = from->count;
    to->is_full = from->is_full;
}

static void keep(Kept *kept, const struct jpeg_decompress_struct *jpeg, const Small *small,
                 const unsigned char *header, size_t header_size)
{
    if (!CAN_GO_BACK || small->is_full || header_size > sizeof kept->header)
        return;
    memcpy(kept->header, header, header_size);
    kept->header_size = header_size;
    kept->jpeg = *jpeg;
    copy_small(&kept->small, small);
}

/* Returns whether libjpeg now stands before the scan of this file, at `n` eighths of its size. */
static int go_back(const Kept *kept, struct jpeg_decompress_struct *jpeg, Small *small,
                   const unsigned char *data, size_t size, int n)
{
    if (!kept->header_size || kept->header_size > size || kept->jpeg.scale_num != (unsigned)n ||
        memcmp(kept->header, data, kept->header_size))
        return 0;
    *jpeg = kept->jpeg;
    copy_small(small, &kept->small);
    return 1;
}
