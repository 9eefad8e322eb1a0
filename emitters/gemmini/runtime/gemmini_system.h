/* gemmini.h as a system header: its warnings are not this program's, whether its folder is given with -I or -isystem. */
#ifndef FADIFF_GEMMINI_SYSTEM_H
#define FADIFF_GEMMINI_SYSTEM_H
#pragma GCC system_header

#include "include/gemmini.h"

#endif
