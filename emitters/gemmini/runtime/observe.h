/* The observer of a run, told before and after every layer. */
#ifndef FADIFF_OBSERVE_H
#define FADIFF_OBSERVE_H

#include <stddef.h>

static int (*observer)(void *context, int layer, int phase);
static void *observer_context;
static int stopped; /* what the observer returned to stop the run */

/* gemmini.h's functions end with a fence that the compiler knows nothing of: no access moves across this one. */
static inline void observe(int layer, int phase)
{
    __asm__ volatile("" ::: "memory");
    if (observer != NULL && stopped == 0) {
        stopped = observer(observer_context, layer, phase);
    }
}

/* A layer that runs alone has ended. */
static inline void observe_end(int layer)
{
    observe(layer, 1);
    observe(layer, 2);
}

#define RETURN_IF_STOPPED() \
    if (stopped != 0) { \
        return stopped; \
    }

#endif
