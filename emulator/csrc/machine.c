#include "machine.h"

Machine machine;
