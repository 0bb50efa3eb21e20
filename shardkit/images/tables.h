/* Huffman tables that a thread has met: if they come again, they are not built again. */
#include <string.h>

#include <jpeglib.h>

/* A table that a thread has met, and its codes, once they were wanted. Files that one program wrote
 * often have the same tables, and small ones are decoded before tables are built. */
typedef struct {
    int is_built;
    JHUFF_TBL table;
    Codes codes;
} Known;

typedef struct {
    Known dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
} Tables;

/* A table that a scan names, and what this thread knows under that number. */
typedef struct {
    const JHUFF_TBL *table;
    Known *known;
} Named;

/* The two tables of each component: returns how many, 0 if one is missing. */
static int name_tables(j_decompress_ptr jpeg, Tables *known, Named *named)
{
    int count = 0;
    for (int i = 0; i < jpeg->comps_in_scan; i++) {
        int dc = jpeg->cur_comp_info[i]->dc_tbl_no, ac = jpeg->cur_comp_info[i]->ac_tbl_no;
        if (dc >= NUM_HUFF_TBLS || ac >= NUM_HUFF_TBLS || !jpeg->dc_huff_tbl_ptrs[dc] ||
            !jpeg->ac_huff_tbl_ptrs[ac])
            return 0;
        named[count++] = (Named){jpeg->dc_huff_tbl_ptrs[dc], &known->dc[dc]};
        named[count++] = (Named){jpeg->ac_huff_tbl_ptrs[ac], &known->ac[ac]};
    }
    return count;
}

/* Is it the table that the last picture of this thread had under its number? */
static int is_known(const Named *named)
{
    const JHUFF_TBL *table = named->table, *known = &named->known->table;
    return !memcmp(known->bits, table->bits, sizeof table->bits) &&
           !memcmp(known->huffval, table->huffval, sizeof table->huffval);
}

/* Only what libjpeg has checked: it does not look at known tables again. */
static void remember(const Named *named)
{
    if (is_known(named))
        return;
    named->known->table = *named->table;
    named->known->is_built = 0;
}

static const Codes *codes_of(const Named *named)
{
    if (!named->known->is_built)
        build(&named->known->codes, &named->known->table);
    named->known->is_built = 1;
    return &named->known->codes;
}
