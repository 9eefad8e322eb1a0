/* What one tile of a fusion group asks of a layer. */
#ifndef FADIFF_REGION_H
#define FADIFF_REGION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int32_t start, end;
} interval_t;

/* What one group tile asks of a layer. */
typedef struct {
    interval_t g, k, n, p, q;    /* outputs to compute; g, k where tiles have some of the groups, channels */
    int32_t in_n, in_y, in_x;    /* first pixel of the input's box, if that is on chip */
    int32_t out_n, out_p, out_q; /* first pixel of the output's box, if that is on chip */
    int32_t fresh_p, fresh_q;    /* first row and column that no earlier tile stored to memory */
    interval_t pool_p, pool_q;   /* windows of the max pool that the stores do */
    bool first;                  /* first tile (of these groups, channels): load the weights that stay */
} region_t;

#endif
