/* Eight int8 in a register, one in each byte, its lane: a core without vectors computes them by arithmetic of words. */
#ifndef FADIFF_PACKED_H
#define FADIFF_PACKED_H

#include "elements.h"

typedef uint64_t __attribute__((may_alias)) packed_t;

/* The same byte in every lane. */
#define LANES(byte) (UINT64_C(0x0101010101010101) * (byte))
#define EVEN_LANES UINT64_C(0x00ff00ff00ff00ff)

/* Elements from which on a run is worked on word by word, where it can be, and the extremum of a row is, wherever it
 * begins. */
enum { LONG_RUN = 16, LONG_EXTREMUM = 64 };

/* Whether x, and what is a multiple of `distance` from it, can be loaded as words. */
static inline bool is_packed(const void *x, ptrdiff_t distance)
{
    return (((uintptr_t)x | (uintptr_t)distance) & 7) == 0;
}

/* Elements before the first word of those from x on. */
static inline int32_t before_words(const void *x)
{
    return (int32_t)(-(uintptr_t)x & 7);
}

static inline packed_t load_packed(const void *x)
{
    return *(const packed_t *)x;
}

static inline void store_packed(void *x, packed_t value)
{
    *(packed_t *)x = value;
}

/* The larger element of each lane. */
ALWAYS_INLINE packed_t larger_packed(packed_t a, packed_t b)
{
    const packed_t sign = LANES(0x80);
    const packed_t differ = a ^ b;
    /* Sign bits: whether the other bits of a are not below those of b; no lane borrows from the next one. */
    const packed_t not_below = (a | sign) - (b & ~sign);
    /* Of different signs a is the larger one where b is negative. */
    const packed_t from_a = (not_below ^ ((not_below ^ b) & differ)) & sign;
    return b ^ (differ & ((from_a << 1) - (from_a >> 7)));
}

ALWAYS_INLINE packed_t smaller_packed(packed_t a, packed_t b)
{
    return ~larger_packed(~a, ~b);
}

static inline int8_t lane_of(packed_t x, int32_t lane)
{
    return (int8_t)(x >> (8 * lane));
}

/* The larger number of each lane of 16 bits, of 0 to 255. */
ALWAYS_INLINE packed_t larger_wide(packed_t a, packed_t b)
{
    const packed_t bit = UINT64_C(0x0100010001000100);
    const packed_t difference = (a | bit) - b; /* with the bit where a is not below b */
    const packed_t from_a = difference >> 8 & (bit >> 8);
    return b + (difference & ((from_a << 8) - from_a));
}

/* The largest of eight elements. */
ALWAYS_INLINE int8_t largest_lane(packed_t x)
{
    x ^= LANES(0x80); /* every element + 128 */
    x = larger_wide(x & EVEN_LANES, x >> 8 & EVEN_LANES);
    x = larger_wide(x, x >> 32);
    x = larger_wide(x, x >> 16);
    return (int8_t)(x ^ 0x80);
}

static inline bool no_lane_is_zero(packed_t x)
{
    return ((x - LANES(1)) & ~x & LANES(0x80)) == 0;
}

/* Sums of lanes in lanes of 16 bits: of up to MOST_SUMMED words. */
typedef struct {
    packed_t even, odd;
} packed_sums_t;

enum { MOST_SUMMED = 256 };

ALWAYS_INLINE void add_packed(packed_sums_t *sums, packed_t x)
{
    const packed_t from_zero = x ^ LANES(0x80); /* every element + 128 */
    sums->even += from_zero & EVEN_LANES;
    sums->odd += (from_zero >> 8) & EVEN_LANES;
}

/* Adds up to MOST_SUMMED words, `distance` elements apart. */
ALWAYS_INLINE packed_sums_t add_words(const elem_t *x, ptrdiff_t distance, int32_t words)
{
    packed_sums_t sums = {0, 0};
    EACH(i, words, add_packed(&sums, load_packed(x)); x += distance);
    return sums;
}

/* The sum of a lane, of `count` words. */
ALWAYS_INLINE int32_t sum_of_lane(const packed_sums_t *sums, int32_t lane, int32_t count)
{
    const packed_t half = lane % 2 == 0 ? sums->even : sums->odd;
    return (int32_t)(half >> (lane / 2 * 16) & 0xffff) - 128 * count;
}

/* The sum of all lanes, of `count` words. */
ALWAYS_INLINE int32_t sum_of_lanes(const packed_sums_t *sums, int32_t count)
{
    const packed_t low = UINT64_C(0x0000ffff0000ffff);
    const packed_t pairs
        = (sums->even & low) + (sums->even >> 16 & low) + (sums->odd & low) + (sums->odd >> 16 & low);
    return (int32_t)(pairs & 0xffffffff) + (int32_t)(pairs >> 32) - 8 * 128 * count;
}

#endif
