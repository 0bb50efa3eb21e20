/* The entropy-coded data of a baseline JPEG, from its bytes to coefficients: only what is needed.
 *
 * libjpeg decodes each MCU of a scan, in order, since nothing tells where the next one begins. Put
 * in the place of its Huffman decoder, this one decodes as few as it can: where a file has restart
 * markers (ITU T.81, B.2.1, E.1.4 and F.2.1.3.1), nothing outside the crop is decoded but what
 * stands between it and the marker before it. And it is faster: a code and the value behind it are
 * one look into a table, mostly, and stuffed bytes are taken out beforehand.
 *
 * It decodes what is in order, and only that: at the first thing that is not, be it harmless, it
 * gives up, and libjpeg decodes the picture from its beginning. So coefficients are libjpeg's, and
 * what is refused never depends on this file.
 */
#include <jpeglib.h>

/* The beginning of what libjpeg's jpegint.h has, which is not installed everywhere. libjpeg-turbo
 * has it from version 6b of libjpeg, of 1998, and still in its version 3. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr jpeg);
    boolean (*decode_mcu)(j_decompress_ptr jpeg, JBLOCKROW *blocks);
};

enum {
    LOOK = 10, /* bits that are looked up at once; 9 took 5 % longer, and 11 no less */
    /* Most bytes of an MCU: 10 blocks of 64 codes of 16 bits and values of 15. So much may be read
     * behind the data before anyone asks. */
    MOST_MCU_BYTES = 10 * 64 * 31 / 8 + 16,
};

/* Fewer bytes are decoded by libjpeg before new tables are built here: 2.7 KB took as long. */
#ifndef LEAST_SCAN_BYTES
#define LEAST_SCAN_BYTES 4096
#endif

/* Of one Huffman table: what the next LOOK bits begin with.
 *
 * look: the number of bits to go on by, the symbol times 256, and the value times 65536. The value
 * is 0 if its bits are not all there; all is 0 if not even the code is.
 * end, first: of the codes of n bits the last one and one more, in the upper bits of 16, and the
 * place of code 0, had it n bits, in `symbols`. */
typedef struct {
    int32_t look[1 << LOOK];
    int32_t end[17], first[17];
    unsigned char symbols[256];
} Codes;

typedef struct {
    uint64_t bits; /* the next ones, from the uppermost down */
    int count;     /* of them, at least */
    const unsigned char *at; /* what comes behind them */
} Bits;

typedef struct {
    const Codes *dc, *ac;
    int component;
} Block;

typedef struct {
    Block blocks[D_MAX_BLOCKS_IN_MCU];
    int num_blocks;
    int32_t row_size, first_column, end_column; /* MCUs: of a row, and of those that are needed */
    uint32_t interval;                          /* MCUs from one restart marker to the next */
    uint32_t asked, decoded; /* number of the MCU that is asked for next, and is decoded next */
    uint32_t num_opened, num_intervals;
    const unsigned char *at, *end; /* of the data: what comes behind the interval opened last */
    unsigned char *plain;          /* its bytes without stuffing, and room behind them */
    size_t num_plain;
    Bits bits;
    int last_dc[MAX_COMPS_IN_SCAN];
} Scan;

/* --- bits ------------------------------------------------------------------------------------- */

/* At least 56 bits from here on. It reads up to 8 bytes, some of them again the next time. */
static inline void refill(Bits *bits)
{
    uint64_t next;
    memcpy(&next, bits->at, sizeof next);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    next = __builtin_bswap64(next);
#endif
    bits->bits |= next >> bits->count;
    bits->at += (63 - bits->count) >> 3;
    bits->count |= 56;
}

static inline void drop(Bits *bits, int count)
{
    bits->bits <<= count;
    bits->count -= count;
}

/* A value of `size` bits, as T.81, F.2.2.1 has it: those that begin with 0 are negative. */
static inline int extend(uint32_t value, int size)
{
    return value >> (size - 1) ? (int)value : (int)value - (1 << size) + 1;
}

/* --- codes ------------------------------------------------------------------------------------ */

static void look_up(Codes *codes, int code, int length, int symbol)
{
    int size = symbol & 15, rest = LOOK - length;
    for (int tail = 0; tail < 1 << rest; tail++) {
        int32_t *entry = &codes->look[code << rest | tail];
        if (size && size <= rest)
            *entry = (int32_t)((uint32_t)extend(tail >> (rest - size), size) << 16) |
                     symbol << 8 | (length + size);
        else
            *entry = symbol << 8 | length;
    }
}

/* libjpeg has checked the table: lengths sum up to 256 at most, and codes fit into theirs. */
static void build(Codes *codes, const JHUFF_TBL *table)
{
    int code = 0, count = 0;
    memset(codes->look, 0, sizeof codes->look);
    memcpy(codes->symbols, table->huffval, sizeof codes->symbols);
    for (int length = 1; length <= 16; length++) {
        codes->first[length] = count - code;
        for (int i = 0; i < table->bits[length]; i++, code++, count++)
            if (length <= LOOK)
                look_up(codes, code, length, table->huffval[count]);
        codes->end[length] = code << (16 - length);
        code <<= 1;
    }
}

/* Of a code of more than LOOK bits, what `look` has of shorter ones; 0 if these 16 bits are none. */
static int32_t look_further(const Codes *codes, int next)
{
    for (int length = LOOK + 1; length <= 16; length++)
        if (next < codes->end[length]) {
            int place = codes->first[length] + (next >> (16 - length));
            return codes->symbols[place & 255] << 8 | length;
        }
    return 0;
}

/* The next symbol, and its value in `*value`, which is 0 where it has none; -1 if there is none.
 * Takes 31 bits at most. */
static inline int next_symbol(const Codes *codes, Bits *bits, int *value)
{
    int32_t entry = codes->look[bits->bits >> (64 - LOOK)];
    if (!entry && !(entry = look_further(codes, (int)(bits->bits >> 48))))
        return -1;
    int symbol = entry >> 8 & 255, size = symbol & 15;
    *value = entry >> 16;
    drop(bits, entry & 63);
    if (*value)
        return symbol;
    if (size) {
        *value = extend((uint32_t)(bits->bits >> (64 - size)), size);
        drop(bits, size);
    }
    return symbol;
}

/* --- blocks and MCUs -------------------------------------------------------------------------- */

/* T.81, F.2.2. Returns whether all was in order. `block`, all 0, may be missing. */
static inline int decode_block(Bits *state, const Block *kind, int *last_dc, JCOEF *block)
{
    static const unsigned char natural[64] = {
        0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
        12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
        35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
        58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    };
    Bits bits = *state; /* in registers */
    int value;
    refill(&bits);
    int symbol = next_symbol(kind->dc, &bits, &value);
    int dc = last_dc[kind->component] + value;
    if (symbol < 0 || symbol > 15 || dc != (JCOEF)dc)
        return 0;
    const Codes *ac = kind->ac;
    last_dc[kind->component] = dc;
    if (block)
        block[0] = (JCOEF)dc;
    for (int k = 1; k < 64; k++) {
        if (bits.count < 32)
            refill(&bits);
        symbol = next_symbol(ac, &bits, &value);
        if (symbol < 0)
            return 0;
        k += symbol >> 4;
        if (value) {
            if (k > 63)
                return 0;
            if (block)
                block[natural[k]] = (JCOEF)value;
        } else if (symbol != 0xF0) {
            if (symbol) /* several ends at once are of progressive files */
                return 0;
            break;
        }
    }
    *state = bits;
    return 1;
}

/* Without `blocks` it is only passed over. */
static int decode_next(Scan *scan, JBLOCKROW *blocks)
{
    for (int i = 0; i < scan->num_blocks; i++) {
        const Block *kind = &scan->blocks[i];
        int is_good = blocks ? decode_block(&scan->bits, kind, scan->last_dc, blocks[i][0])
                             : decode_block(&scan->bits, kind, scan->last_dc, NULL);
        if (!is_good)
            return 0;
    }
    scan->decoded++;
    size_t taken = (size_t)(scan->bits.at - scan->plain) * 8 - (size_t)scan->bits.count;
    return taken <= scan->num_plain * 8;
}

/* --- intervals -------------------------------------------------------------------------------- */

/* Go on to the next marker, and copy what stands before it, but for zeros stuffed behind 0xFF, to
 * `plain` if that is there. Returns whether it is the marker that should be here. */
static int next_interval(Scan *scan, unsigned char *plain)
{
    const unsigned char *at = scan->at, *mark;
    unsigned char *to = plain;
    while ((mark = memchr(at, 0xFF, (size_t)(scan->end - at))) && mark + 1 < scan->end) {
        size_t count = (size_t)(mark - at) + (mark[1] == 0);
        if (plain)
            memcpy(to, at, count);
        to += plain ? count : 0;
        at = mark + 2;
        if (mark[1] == 0)
            continue;
        scan->at = at;
        scan->num_plain = plain ? (size_t)(to - plain) : 0;
        int is_last = scan->num_opened + 1 == scan->num_intervals;
        scan->num_opened++;
        return is_last ? mark[1] < JPEG_RST0 || mark[1] > JPEG_RST0 + 7
                       : mark[1] == JPEG_RST0 + (scan->num_opened - 1) % 8;
    }
    return 0;
}

/* Begin with an MCU's interval, which is none before the one opened last. */
static int open_interval(Scan *scan, uint32_t mcu)
{
    uint32_t wanted = mcu / scan->interval;
    while (scan->num_opened < wanted)
        if (!next_interval(scan, NULL))
            return 0;
    if (!next_interval(scan, scan->plain))
        return 0;
    memset(scan->plain + scan->num_plain, 0, MOST_MCU_BYTES);
    scan->bits = (Bits){.at = scan->plain};
    memset(scan->last_dc, 0, sizeof scan->last_dc);
    scan->decoded = wanted * scan->interval;
    return 1;
}

/* Decode the MCU that libjpeg asks for, if it needs it; others only as far as these need them. */
static int next_mcu(Scan *scan, JBLOCKROW *blocks)
{
    uint32_t mcu = scan->asked++;
    int32_t column = (int32_t)(mcu % (uint32_t)scan->row_size);
    if (!blocks || column < scan->first_column || column >= scan->end_column)
        return 1;
    if (mcu / scan->interval >= scan->num_opened && !open_interval(scan, mcu))
        return 0;
    while (scan->decoded < mcu)
        if (!decode_next(scan, NULL))
            return 0;
    return decode_next(scan, blocks);
}
