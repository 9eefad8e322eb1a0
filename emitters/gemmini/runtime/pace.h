/* Moves spread over products. */
#ifndef FADIFF_PACE_H
#define FADIFF_PACE_H

#include <stdint.h>

/* Moves go out between products, a few before each: as soon as one finds no entry in the reservation station, the core
 * waits, and with it the products behind. */
typedef struct {
    int32_t moves, products; /* so many moves over so many products */
    int32_t due;             /* of the next move, times products; from half a move early on */
} pace_t;

static inline pace_t pace_of(int32_t moves, int32_t products)
{
    return (pace_t){.moves = moves, .products = products, .due = -products / 2};
}

/* Before a product: how many moves are due. */
static inline int32_t moves_due(pace_t *pace)
{
    int32_t count = 0;
    for (pace->due += pace->moves; pace->due > 0; pace->due -= pace->products) {
        count++;
    }
    return count;
}

#endif
