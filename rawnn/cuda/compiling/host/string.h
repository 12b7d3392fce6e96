// The C name of <cstring>.
#pragma once
#include <cstring>
